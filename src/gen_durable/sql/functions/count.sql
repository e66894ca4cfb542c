-- count: how many instances match a filter, in bounded time.
--
-- Parameters: wanted, the filter (filter_sql.sql); most, up to which number to count; scan, the most rows to examine;
-- sample, how many pages to sample.
-- Returns the number, and whether it is exact. It is exact if examining `scan` rows was enough; otherwise it is
-- estimated from randomly sampled pages of the table or from the planner's statistics, and never less than the matches
-- seen.
-- Index: filter_sql.sql; instances_metadata, as in list.sql. Locks: none.
create or replace function @schema.count(wanted jsonb, most int, scan int default 20000, sample int default 500)
returns table (value bigint, exact boolean)
language plpgsql  -- not stable: a stable function may not run EXPLAIN
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  before constant timestamptz := least(  -- as in list.sql
    (wanted ->> 'inserted_before')::timestamptz, (wanted ->> 'updated_before')::timestamptz,
    (wanted ->> 'finished_before')::timestamptz
  );
  newest constant bigint := coalesce(@schema.id_bound_before_time(before), 9223372036854775807);
  query record;
  examined int;
  lowest bigint;
  plan json;
  seen bigint;
  percent float8;
begin
  select filter.* into query from @schema.filter_sql(wanted, scan / 4) as filter;
  execute format(
    'select count(*) from (select from (%s limit $3) as i where %s limit $4) as page', query.candidates, query.filters
  ) into seen using wanted, newest, scan, most + 1;
  execute format('select min(page.id), count(*) from (select i.id from (%s limit $3) as i) as page', query.candidates)
    into lowest, examined using wanted, newest, scan;
  if seen <= most and (examined < scan or (
    select i.inserted_at + interval '1 hour' < (wanted ->> 'inserted_after')::timestamptz
    from @schema.instances i where i.id = lowest
  )) then
    return query select seen, true;
    return;
  end if;
  if wanted ? 'metadata' and @schema.has_metadata_index() then
    -- As in list.sql: matches that are rare in the whole table are counted by their index.
    execute format(
      'select count(*) filter (where %s), count(*) from (select i.* from @schema.instances i '
      'where i.metadata @> ($1 -> ''metadata'') and i.metadata is not null limit $2) as i', query.filters
    ) into value, examined using wanted, scan / 20 + 1;
    if examined <= scan / 20 then
      exact := true;
      return next;
      return;
    end if;
  end if;
  percent := least(100, 100.0 * sample / greatest(
    1, pg_relation_size('@schema.instances'::regclass) / current_setting('block_size')::int
  ));
  execute format('select count(*) from @schema.instances i tablesample system ($2) where %s', query.filters)
    into value using wanted, percent;
  -- A small sample misleads, because similar rows lie together. For a single column the statistics are better.
  if value < 1000 and percent < 100
    and array(select jsonb_object_keys(wanted)) <@ '{status,machine,version,step,queue,partition_key}'
    and (select count(*) <= 1 from jsonb_object_keys(wanted))
    and (select relation.reltuples >= 0 from pg_class relation where relation.oid = '@schema.instances'::regclass)
  then
    execute format('explain (format json) select from @schema.instances i where %s', query.filters)
      into plan using wanted, newest;
    value := (plan -> 0 -> 'Plan' ->> 'Plan Rows')::float8;
    return query select greatest(seen, case when value > 1 then value else 0 end), false;  -- it never estimates 0
    return;
  end if;
  return query select greatest(seen, (value * 100 / percent)::bigint), false;
end
$$;

comment on function @schema.count(jsonb, int, int, int) is
  'Counts the instances that match a filter, or estimates them if there are many: select * from '
  'gen_durable.count(''{"queue": "mail"}'', 10000).';
