-- list: a page of the ids of instances that match a filter, newest first.
--
-- Parameters: wanted, the filter (filter_sql.sql); after, the id below which the page begins (null for the newest);
-- page, the most instances to return; scan, the most rows to examine.
-- Returns the ids, and rest: the id below which the next page begins, null at the end. A page may be short or empty
-- without being the last: `scan` rows were examined, and the rest is left to the next call.
-- Index: filter_sql.sql, id_bound_before_time.sql; instances_metadata, if it exists and the newest rows have not filled the
-- page.
-- Locks: none. `rows 1`: with the default of a thousand, a statement that joins the ids is estimated so high that it is
-- compiled in a session with `jit`.
create or replace function @schema.list(wanted jsonb, after bigint, page int, scan int default 20000)
returns table (ids bigint[], rest bigint)
language plpgsql
stable
rows 1
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  -- A row that was changed or ended before a moment was also inserted before it.
  before constant timestamptz := least(
    (wanted ->> 'inserted_before')::timestamptz, (wanted ->> 'updated_before')::timestamptz,
    (wanted ->> 'finished_before')::timestamptz
  );
  below constant bigint := least(coalesce(after, 9223372036854775807), @schema.id_bound_before_time(before));
  few constant int := scan / 4;
  rare constant int := scan / 20;  -- such rows are scattered over the table, one page each
  query record;
  examined int;
  lowest bigint;
  found bigint[];
begin
  select filter.* into query from @schema.filter_sql(wanted, few) as filter;
  execute format(
    'select array_agg(page.id order by page.id desc) from (select i.id from (%s limit $3) as i where %s limit $4) as page',
    query.candidates, query.filters
  ) into ids using wanted, below, scan, page + 1;
  if cardinality(ids) > page then
    ids := ids[:page];
    rest := ids[page];
    return next;
    return;
  end if;

  execute format('select min(page.id), count(*) from (select i.id from (%s limit $3) as i) as page', query.candidates)
    into lowest, examined using wanted, below, scan;
  if examined = scan then
    rest := lowest;
    if wanted ? 'inserted_after' and (
      -- As in id_bound_before_time.sql: all rows below were inserted before.
      select i.inserted_at + interval '1 hour' < (wanted ->> 'inserted_after')::timestamptz
      from @schema.instances i where i.id = lowest
    ) then
      rest := null;
    elsif wanted ? 'metadata' and @schema.has_metadata_index() then
      -- Matches that are rare among the newest rows may be rare in the whole table: then read them by their index.
      select array_agg(i.id) into found from (
        select i.id from @schema.instances i
        where i.metadata @> (wanted -> 'metadata') and i.metadata is not null limit rare + 1
      ) as i;
      if coalesce(cardinality(found), 0) <= rare then
        execute format(
          'select array_agg(page.id order by page.id desc) from ('
          'select i.id from @schema.instances i where i.id = any ($3) and i.id < $2 and %s '
          'order by i.id desc limit $4) as page',
          query.filters
        ) into ids using wanted, below, found, page + 1;
        rest := case when cardinality(ids) > page then ids[page] end;
        ids := ids[:page];
      end if;
    end if;
  end if;
  return next;
end
$$;

comment on function @schema.list(jsonb, bigint, int, int) is
  'Returns a page of the ids that match a filter, newest first, and the id after which the next page begins: '
  'select * from gen_durable.list(''{"status": ["failed"]}'', null, 50).';
