-- ends_of: how the given instances ended.
--
-- Parameters: ids; the size of a page, in characters of results and errors.
-- Returns one row per id that has ended or does not exist (status null), until the page is full; it has at least one
-- row, however large. The caller asks again for the others. To a login that may read only its own instances
-- (may_read_column.sql), others do not exist.
-- A loop, since it reads no result beyond the page. Index: primary key. Locks: none.
create or replace function @schema.ends_of(ids bigint[], page_size int default 16000000)
returns table (id bigint, status text, result jsonb, last_error text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  size bigint := 0;
begin
  perform @schema.require_max_elements(cardinality(ids), 100000);
  for id, status, result, last_error in
    select given.id, i.status::text, i.result, i.last_error
    from unnest(ids) as given (id)
    left join @schema.instances i
      on i.id = given.id and ((select @schema.may_read_column('state')) or i.inserted_by = (select @schema.session_login()))
    where i.id is null or i.finished_at is not null
  loop
    return next;
    size := size + coalesce(length(ends_of.result::text), 0) + coalesce(length(ends_of.last_error), 0);
    exit when size >= page_size;
  end loop;
end
$$;

comment on function @schema.ends_of(bigint[], int) is
  'Returns status, result and error of the given instances that have ended; the status is null for an id that '
  'does not exist.';
