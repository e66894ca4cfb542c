-- progress_of: the progress reports of an instance, the latest last.
--
-- Parameters: an id or, where that is null, a unique key (id_of_key.sql). A login that may not read all instances sees reports of those
-- that it has inserted (may_read_column.sql).
-- Index: primary key of progress; instances_unique, instances_key. Locks: none.
create or replace function @schema.progress_of(instance bigint, key bytea default null)
returns table (step text, branch text, fraction float8, message text, updated_at timestamptz, detail jsonb)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select report.step, report.branch, report.fraction, report.message, report.updated_at, report.detail
  from @schema.progress report
  where report.instance_id = coalesce(instance, (select @schema.id_of_key(key)))
    and (
      (select @schema.may_read_column('state'))
      or (select i.inserted_by = (select @schema.session_login()) from @schema.instances i where i.id = report.instance_id)
    )
  order by report.updated_at, report.step, report.branch
$$;

comment on function @schema.progress_of(bigint, bytea) is
  'Returns the progress reports of an instance, the latest last: select * from gen_durable.progress_of(42).';
