-- allocate_ids: ids for instances whose payloads must contain them before the insert (insert.sql,
-- insert_instances_of_outcomes.sql).
--
-- Returns `count` ids, ascending, at most 100,000. Only this login can use them, each once, within a day
-- (use_up_allocated_ids.sql, gc_unused_ids.sql). An unused id is lost, as after a rollback.
-- A login with a quota keeps only ids among the last million of the installation, so it has at most a million unused ones;
-- a client whose id was forgotten draws another.
-- Index: primary key. Locks: the entries that are forgotten, SKIP LOCKED: an insert that uses one goes first.
-- Guarded by tests/store/test_allocated_ids.py, tests/security/test_allocated_ids.py.
create or replace function @schema.allocate_ids(count int)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  ids constant bigint[] := @schema.draw_unused_ids(least(allocate_ids.count, 100000));
  drawer constant oid := case when session_user <> current_user then @schema.session_login() end;  -- as in insert
begin
  if exists (
    select from @schema.restricted_logins restricted
    where restricted.login = drawer and (restricted.max_live is not null or restricted.inserts_per_second is not null)
  ) then
    delete from @schema.allocated_ids allocated
    where allocated.id = any (array(
      select old.id from @schema.allocated_ids old
      where old.id < ids[1] - 1000000 and old.login = drawer
      for update skip locked
    ));
  end if;
  insert into @schema.allocated_ids (id, login) select unnest(ids), drawer;
  return ids;
end
$$;

comment on function @schema.allocate_ids(int) is
  'Allocates ids for instances to insert, for payloads that are encrypted with the id of their instance. Only the login'
  ' that calls it can use them, each once, within a day.';
