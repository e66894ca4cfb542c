-- record_activity: record an activity call that has ended.
--
-- Parameters: the fence (lock_row_for_journal.sql); the number of the call within the visit; its name, parameters, and result
-- or error; how many seconds ago it began and how long it took; attempt, how often the name was called before.
-- The row's step is stored with it: the row is locked, so it is the step that made the call.
-- Returns false if the claim is lost and nothing was written. Repeating the call after a lost answer changes nothing,
-- because the number is the same.
-- Index: primary keys. Locks: the instance.
-- Guarded by tests/store/test_journal.py.
create or replace function @schema.record_activity(
  instance bigint, epoch bigint, seq bigint, number int, name text, parameters jsonb, result jsonb, error text,
  ago float8, duration float8, attempt int
)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  at_visit bigint;
begin
  at_visit := @schema.lock_row_for_journal(instance, epoch, seq);
  if at_visit is null then
    return false;
  end if;
  insert into @schema.activities (
    instance_id, visit, n, step, name, parameters, result, error, started_at, duration, attempt
  )
  select
    instance, at_visit, number, i.step, name, parameters, result, error, now() - make_interval(secs => ago), duration,
    attempt
  from @schema.instances i where i.id = instance
  on conflict on constraint activities_pkey do nothing;
  return true;
end
$$;
