-- finished_of: how the given instances have ended, for those that have; and which of them do not exist.
--
-- In: ids. Out: one row per id that has ended or is unknown (status null), as are those of others to whoever may see only
-- his own (may_read.sql). Index: primary key.
create or replace function @schema.finished_of(ids bigint[])
returns table (id bigint, status text, result jsonb, last_error text)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select o.id, i.status::text, i.result, i.last_error
  from unnest(ids) as o (id)
  left join @schema.instances i on i.id = o.id and ((select @schema.may_read('state')) or i.inserted_by = session_user)
  where i.id is null or i.finished_at is not null
$$;
