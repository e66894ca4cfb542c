-- lock_row_for_journal: lock the row of a step that writes to its journal before its outcome, if the fence matches, and
-- set has_journal.
--
-- Parameters: id, epoch and seq of the claim as the step received them.
-- Returns the visit, or null if the claim is lost or the step has been left. The row stays locked until the write
-- commits, so the claim cannot be taken over in between (tests/interleavings: reap_checkpoint).
-- Index: primary key. Locks: the row.
create or replace function @schema.lock_row_for_journal(instance bigint, epoch bigint, seq bigint)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  found_visit bigint;
  already_flagged boolean;
begin
  select i.visit, i.has_journal into found_visit, already_flagged from @schema.instances i
  where i.id = instance and i.claims = epoch and i.seq = seq
  for no key update;
  if not already_flagged then
    update @schema.instances i set has_journal = true where i.id = instance;
  end if;
  return found_visit;
end
$$;
