-- gc_rows_with_own_retention: delete ended instances that were inserted with a keep of their own, once it has passed.
--
-- Parameters and result: as gc.sql, with the moment at which the keep passes in place of the end. Rows that are kept for
-- good are not in the index. visited_until stays a minute behind, as in gc.
-- An ended child is kept while its parent has not ended.
-- Index: instances_keep_passed; primary key for the parents. Locks: the rows, SKIP LOCKED (tests/interleavings:
-- gc_kept_insert).
create or replace function @schema.gc_rows_with_own_retention(
  batch int, skip int default 0, after timestamptz default null, out deleted int, out visited_until timestamptz,
  out more boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
  past constant timestamp := now() at time zone 'UTC';
  visit_from constant timestamp := coalesce(after at time zone 'UTC', '-infinity');
  visit_until timestamp;
  last_deleted timestamp;
begin
  select @schema.keep_ends_at(i.finished_at, i.keep_seconds) into visit_until
  from @schema.instances i
  where @schema.keep_ends_at(i.finished_at, i.keep_seconds) >= visit_from
    and @schema.keep_ends_at(i.finished_at, i.keep_seconds) < past
    and i.keep_seconds < 'Infinity'
  order by @schema.keep_ends_at(i.finished_at, i.keep_seconds)
  offset batch + 1000 limit 1;
  if visit_until = visit_from then
    select @schema.keep_ends_at(i.finished_at, i.keep_seconds) into visit_until
    from @schema.instances i
    where @schema.keep_ends_at(i.finished_at, i.keep_seconds) > visit_from
      and @schema.keep_ends_at(i.finished_at, i.keep_seconds) < past
      and i.keep_seconds < 'Infinity'
    order by @schema.keep_ends_at(i.finished_at, i.keep_seconds)
    limit 1;
  end if;

  with old as materialized (
    select i.ctid as place, @schema.keep_ends_at(i.finished_at, i.keep_seconds) as passed_at
    from @schema.instances i
    where @schema.keep_ends_at(i.finished_at, i.keep_seconds) >= visit_from
      and @schema.keep_ends_at(i.finished_at, i.keep_seconds) < coalesce(visit_until, past)
      and i.keep_seconds < 'Infinity'
      and not exists (
        select from @schema.instances parent where parent.id = i.parent_id and parent.finished_at is null
      )
    order by @schema.keep_ends_at(i.finished_at, i.keep_seconds)
    offset skip
    limit batch
    for update skip locked
  ),
  gone as (
    delete from @schema.instances i using old where i.ctid = old.place  -- a ctid cannot change under the lock
    returning old.passed_at
  )
  select count(*), max(gone.passed_at) into deleted, last_deleted from gone;
  more := deleted = batch or visit_until is not null;
  if deleted < batch then
    last_deleted := coalesce(visit_until, past);
  end if;
  visited_until := least(last_deleted, past - interval '1 minute') at time zone 'UTC';
end
$$;
