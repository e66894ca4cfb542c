-- Baseline, a part of its own: the rows that sessions lock instead of advisory numbers, which any login could take.

create table @schema.gate_locks (id bigint primary key);
comment on table @schema.gate_locks is
  'One row per lock of partition keys (0 to 2047), of limits (2048 to 4095), and of changes of limits (-64 to -1). Rows '
  'are locked and never changed, and no role may lock them except through functions. Do not delete rows: work behind '
  'a lock whose row is missing waits for ever.';
insert into @schema.gate_locks (id) select number from generate_series(-64, 4095) as number;
