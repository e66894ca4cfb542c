-- activities_of: the activity log of an instance, in the order they began; by id or, where that is null, by its key.
-- Index: primary key of activities; gen_durable_unique.
create or replace function @schema.activities_of(instance bigint, key bytea default null)
returns table (
  visit int, name text, attempt int, started_at timestamptz, duration float8, error text, parameters jsonb, result jsonb
)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select a.visit, a.name, a.attempt, a.started_at, a.duration, a.error, a.parameters, a.result
  from @schema.activities a
  where a.instance_id = coalesce(instance, (select g.id from @schema.gen_durable g where g.unique_guard = key))
  order by a.visit, a.n
$$;
