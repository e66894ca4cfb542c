-- lock_more_rows_to_block: lock more due rows of gates at which pick has just blocked many, so that they are blocked
-- together.
--
-- Parameters: the crowded gates; all gates that this transaction has locked; rows that pick has found, to leave out.
-- Returns up to 1,000 rows per gate. admit_or_block_rows_by_limit blocks them with the others.
-- Rows with a partition key are left out: only the head of a key may go on to a limit. So are rows of a crowded rate
-- whose slot is not locked here: they are expected to take the slot, so blocking one would have to unblock another.
-- Index: instances_slot_due, instances_rate_due, under the planner settings of pick; the coalesce follows their terms.
-- Locks: the rows with SKIP LOCKED.
-- Guarded by tests/store/test_limits.py, test_limits_corners.py, test_no_waiting.py.
create or replace function @schema.lock_more_rows_to_block(crowded_gates text[], locked_gates text[], excluded_rows tid[])
returns tid[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  bulk constant int := 1000;
begin
  return array(
    select behind.tid from unnest(crowded_gates) as crowd (gate)
    cross join lateral (
      select i.ctid as tid from @schema.instances i
      where i.slot_key = @schema.key_of_gate(crowd.gate) and starts_with(crowd.gate, 'slot/')
        and i.partition_key is null
        and coalesce(i.due_at, 'infinity') <= now() and coalesce(i.due_at, 'infinity') < 'infinity'
        and i.ctid <> all (excluded_rows)
      order by i.queue, coalesce(i.due_at, 'infinity') limit bulk for no key update skip locked
    ) as behind
  ) || array(
    select behind.tid from unnest(crowded_gates) as crowd (gate)
    cross join lateral (
      select i.ctid as tid from @schema.instances i
      where i.rate_key = @schema.key_of_gate(crowd.gate) and starts_with(crowd.gate, 'rate/') and i.token_at is null
        and coalesce(i.due_at, 'infinity') <= now() and coalesce(i.due_at, 'infinity') < 'infinity'
        and i.partition_key is null and i.ctid <> all (excluded_rows)
        and (i.slot_key is null or @schema.gate_name('slot', i.slot_key) = any (locked_gates))
      order by coalesce(i.due_at, 'infinity') limit bulk for no key update skip locked
    ) as behind
  );
end
$$;
