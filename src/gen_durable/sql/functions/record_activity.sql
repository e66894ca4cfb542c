-- record_activity: write down a call of an activity that has ended.
--
-- In: the fence (fence_journal.sql); its number within the visit; its name, parameters, and result or error; how many
-- seconds ago it began, and how long it took; how often the name was called before. Out: false: the claim is lost, and
-- nothing was written. The same call again, after an answer was lost, changes nothing: it has the same number.
-- Index: primary keys. Locks: the instance.
create or replace function @schema.record_activity(
  instance bigint, claim int, outcomes int, number int, name text, parameters jsonb, result jsonb, error text, ago float8,
  duration float8, attempt int
)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  at_visit int;
begin
  at_visit := @schema.fence_journal(instance, claim, outcomes);
  if at_visit is null then
    return false;
  end if;
  insert into @schema.activities (
    instance_id, visit, n, name, parameters, result, error, started_at, duration, attempt
  )
  values (
    instance, at_visit, number, name, parameters, result, error, now() - make_interval(secs => ago), duration, attempt
  )
  on conflict on constraint activities_pkey do nothing;
  return true;
end
$$;
