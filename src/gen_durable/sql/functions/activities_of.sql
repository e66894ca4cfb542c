-- activities_of: the activity log of an instance, in the order of their beginning.
--
-- Parameters: an id or, where that is null, a unique key; last, return only that many of the latest (null for all). A
-- login that may not read payloads (may_read.sql) sees '(not shown)' instead of an error.
-- Index: primary key of activities; instances_unique. Locks: none.
create or replace function @schema.activities_of(instance bigint, key bytea default null, last int default null)
returns table (
  visit int, name text, attempt int, started_at timestamptz, duration float8, error text, parameters jsonb, result jsonb
)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select l.visit, l.name, l.attempt, l.started_at, l.duration,
    case when s.sees then l.error when l.error is not null then '(not shown)' end,
    case when s.sees then l.parameters else '{}' end, case when s.sees then l.result end
  from (select @schema.may_read('state') offset 0) as s (sees)
  cross join (
    select a.* from @schema.activities a
    where a.instance_id = coalesce(instance, (select i.id from @schema.instances i where i.unique_guard = key))
    order by a.visit desc, a.n desc
    limit last
  ) as l
  order by l.visit, l.n
$$;
