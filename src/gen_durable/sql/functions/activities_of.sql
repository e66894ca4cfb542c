-- activities_of: the activity log of an instance, in the order of their beginning.
--
-- Parameters: an id or, where that is null, a unique key (id_of_key.sql); last, return only that many of the latest
-- (null for all). A login that may not read payloads (may_read_column.sql) sees '(not shown)' instead of an error.
-- Index: primary key of activities; instances_unique, instances_key. Locks: none.
create or replace function @schema.activities_of(instance bigint, key bytea default null, last int default null)
returns table (
  visit bigint, step text, name text, attempt int, started_at timestamptz, duration float8, error text,
  parameters jsonb, result jsonb
)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select latest.visit, latest.step, latest.name, latest.attempt, latest.started_at, latest.duration,
    case when login.sees_payloads then latest.error when latest.error is not null then '(not shown)' end,
    case when login.sees_payloads then latest.parameters else '{}' end,
    case when login.sees_payloads then latest.result end
  from (select @schema.may_read_column('state') offset 0) as login (sees_payloads)
  cross join (
    select activity.* from @schema.activities activity
    where activity.instance_id = coalesce(instance, (select @schema.id_of_key(key)))
    order by activity.visit desc, activity.n desc
    limit last
  ) as latest
  order by latest.visit, latest.n
$$;

comment on function @schema.activities_of(bigint, bytea, int) is
  'Returns the completed activities of an instance, in order: select * from gen_durable.activities_of(42).';
