-- allocate_ids: ids for instances whose payloads must contain them before the insert (insert.sql, insert_started_instances.sql).
--
-- Returns `count` ids, ascending, at most 100,000. An unused id is lost, as after a rollback.
create or replace function @schema.allocate_ids(count int)
returns bigint[]
language sql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  select array(
    select nextval('@schema.instances_id_seq'::regclass) from generate_series(1, least(allocate_ids.count, 100000))
  )
$$;

comment on function @schema.allocate_ids(int) is
  'Allocates ids for instances to insert, for payloads that are encrypted with the id of their instance.';
