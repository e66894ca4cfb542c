-- ends_of: how the given instances ended.
--
-- Returns one row per id that has ended or does not exist (status null). To a login that may read only its own
-- instances (may_read_column.sql), others do not exist. Index: primary key. Locks: none.
create or replace function @schema.ends_of(ids bigint[])
returns table (id bigint, status text, result jsonb, last_error text)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
  select given.id, i.status::text, i.result, i.last_error
  from unnest(ids) as given (id)
  left join @schema.instances i
    on i.id = given.id and ((select @schema.may_read_column('state')) or i.inserted_by = session_user)
  where i.id is null or i.finished_at is not null
$$;

comment on function @schema.ends_of(bigint[]) is
  'Returns status, result and error of the given instances that have ended; the status is null for an id that '
  'does not exist.';
