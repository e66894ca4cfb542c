-- release_step_limit: delete a ticket of acquire_step_limit, and unblock rows for its slot.
--
-- Returns the queues of the unblocked rows; null if the ticket does not exist.
-- Locks: the ticket, then the gate. Guarded by tests/interleavings/test_limits.py (test_leave_pick).
create or replace function @schema.release_step_limit(ticket bigint)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  key text;
begin
  delete from @schema.step_slots slot where slot.ticket = release_step_limit.ticket returning slot.slot_key into key;
  return case when key is not null then @schema.unblock(array[@schema.gate_name('slot', key)], true) end;
end
$$;
