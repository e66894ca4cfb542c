-- live_id_of_key: the id of the live instance that holds a unique key, or null. A client that encrypts a signal needs it.
-- A login that may change only its own instances finds only those (may_change_instances_of_others.sql).
--
-- Index: instances_unique. Locks: none.
create or replace function @schema.live_id_of_key(key bytea)
returns bigint
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select i.id from @schema.instances i
  where i.unique_guard = live_id_of_key.key and i.finished_at is null
    and ((select @schema.may_change_instances_of_others()) or i.inserted_by = (select @schema.session_login()))
$$;

comment on function @schema.live_id_of_key(bytea) is
  'Returns the id of the instance that holds a unique key and has not ended, or null.';
