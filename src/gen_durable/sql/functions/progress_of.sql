-- progress_of: how far the steps of an instance have come, the latest word last; by id or, where that is null, by its key.
-- Index: primary key of progress; gen_durable_unique.
create or replace function @schema.progress_of(instance bigint, key bytea default null)
returns table (step text, branch text, fraction float8, message text, updated_at timestamptz, detail jsonb)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select p.step, p.branch, p.fraction, p.message, p.updated_at, p.detail
  from @schema.progress p
  where p.instance_id = coalesce(instance, (select g.id from @schema.gen_durable g where g.unique_guard = key))
  order by p.updated_at, p.step, p.branch
$$;
