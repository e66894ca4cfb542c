-- A row of gate_locks is missing, so the work behind that lock waits for ever: insert the ids into gate_locks.
select number as id, 'no row of gate_locks has this id' as problem
from generate_series(-64, 4095) as number
where (select count(*) from @schema.gate_locks) < 4160
  and not exists (select from @schema.gate_locks lock where lock.id = number)
