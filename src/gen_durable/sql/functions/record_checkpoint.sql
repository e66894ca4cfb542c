-- record_checkpoint: store a value for the next execution of the same visit of a step.
--
-- Parameters: the fence (lock_row_for_journal.sql); the value; the format of the row.
-- Returns how many checkpoints this visit has written, including this one, or null if the claim is lost and nothing was
-- written.
-- Index: primary keys. Locks: the instance.
-- Guarded by tests/store/test_journal.py.
create or replace function @schema.record_checkpoint(instance bigint, epoch bigint, seq bigint, value jsonb, format int)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  at_visit bigint;
  written bigint;
begin
  at_visit := @schema.lock_row_for_journal(instance, epoch, seq);
  if at_visit is null then
    return null;
  end if;
  insert into @schema.checkpoints as stored (instance_id, visit, version, format, value)
  values (instance, at_visit, 1, format, value)
  on conflict (instance_id) do update set
    version = case when stored.visit = excluded.visit then stored.version + 1 else 1 end,
    visit = excluded.visit,
    format = excluded.format,
    value = excluded.value,
    updated_at = now()
  returning stored.version into written;
  return written;
end
$$;
