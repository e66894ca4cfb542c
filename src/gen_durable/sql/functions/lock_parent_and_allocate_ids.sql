-- lock_parent_and_allocate_ids: lock the parent of many children, and allocate their ids in the order in which they are
-- listed.
--
-- Parameters: the fence of the parent's claim; the number of children.
-- Returns the ids, or null if the claim is lost, its outcome is already committed or a cancel is pending. The flush
-- that follows in the same transaction reports which.
-- Index: primary key. Locks: the parent's row, until the end of the transaction.
-- Guarded by tests/store/test_no_waiting.py (test_a_reserved_parent_stays_locked).
create or replace function @schema.lock_parent_and_allocate_ids(parent bigint, epoch bigint, seq bigint, count int)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'  -- as in flush
set enable_seqscan = off
as $$
#variable_conflict use_variable
begin
  perform from @schema.instances i
  where i.id = parent and i.claims = epoch and i.seq = seq and i.cancel_reason is null
  for no key update;
  if not found then
    return null;
  end if;
  return @schema.draw_unused_ids(count);
end
$$;
