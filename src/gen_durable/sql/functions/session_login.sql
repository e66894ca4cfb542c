-- session_login: the oid of the login of this session, as inserted_by stores it. A name would not do: a login that is
-- renamed stays the same, and another may get its old name.
create or replace function @schema.session_login()
returns oid
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  select r.oid from pg_roles r where r.rolname = session_user
$$;
