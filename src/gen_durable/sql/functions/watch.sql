-- watch: how the given instances have ended, for those that have; and which of them do not exist.
--
-- In: ids. Out: one row per id that has ended or is unknown (status null), as are those of others to whoever may see only
-- his own (entitled.sql). Index: primary key.
create or replace function @schema.watch(ids bigint[])
returns table (id bigint, status text, result jsonb, last_error text)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select o.id, g.status::text, g.result, g.last_error
  from unnest(ids) as o (id)
  left join @schema.gen_durable g on g.id = o.id and ((select @schema.entitled('state')) or g.inserted_by = session_user)
  where g.id is null or g.finished_at is not null
$$;
