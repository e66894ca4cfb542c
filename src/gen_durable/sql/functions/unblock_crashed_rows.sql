-- unblock_crashed_rows: return rows that crashed twice in a row to the pick index, for the pick that calls this.
--
-- Parameters: the queue; `known` as in pick; how many rows; whether one that the next crash would fail may run, if there
-- is no other.
-- Returns the ids, and the gates that they have left: pick blocks those again that it does not claim.
-- Index: instances_blocked. Locks: the rows, as pick.
-- Guarded by tests/store/test_crashed_rows.py.
create or replace function @schema.unblock_crashed_rows(
  queue_name text, known text[], wanted int, may_run_last_chance boolean, out ids bigint[], out gates text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  gate text;
begin
  foreach gate in array array[
    @schema.gate_name('crashed', queue_name), @schema.gate_name('last_chance', queue_name)
  ] loop
    continue when gate = @schema.gate_name('last_chance', queue_name) and not may_run_last_chance;
    with unblocked as (
      update @schema.instances i set blocked_on = null
      where i.ctid = any (array(
        select i.ctid from @schema.instances i
        where i.blocked_on = gate and i.eligible_at <= now()
          and @schema.qualified_step_name(i.fsm, i.fsm_version, i.step) = any (known)
        order by i.priority, i.eligible_at, i.id
        limit case when gate = @schema.gate_name('crashed', queue_name) then wanted else 1 end
        for no key update skip locked
      ))
      returning i.id
    )
    select array_agg(unblocked.id), array_agg(gate) into ids, gates from unblocked;
    exit when ids is not null;
  end loop;
end
$$;
