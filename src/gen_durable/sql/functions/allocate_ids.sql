-- allocate_ids: ids for instances whose payloads must know them before they are inserted (insert.sql, spawn.sql).
--
-- In: how many. Out: so many ids, ascending. One that is not used is lost, as after a rollback.
create or replace function @schema.allocate_ids(count int)
returns bigint[]
language sql
set search_path = pg_catalog, pg_temp
as $$
  select array(
    select nextval('@schema.instances_id_seq'::regclass) from generate_series(1, least(allocate_ids.count, 100000))
  )
$$;
