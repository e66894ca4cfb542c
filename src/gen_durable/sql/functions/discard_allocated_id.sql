-- discard_allocated_id: forget an id that this login has drawn for an instance which it will not insert.
--
-- Parameter: the instance, as insert_if_key_free.sql takes it, with its id.
-- Index: primary key. Locks: the entry. Guarded by tests/store/test_allocated_ids.py.
create or replace function @schema.discard_allocated_id(start jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
  delete from @schema.allocated_ids allocated
  where allocated.id = (start ->> 'id')::bigint
    and allocated.login is not distinct from case when session_user <> current_user then @schema.session_login() end;
end
$$;
