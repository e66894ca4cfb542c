-- may_read_column: true if the session user may read this column of every instance.
--
-- Without roles (roles.sql) it is always true: functions run with the rights of their callers, which Postgres checks.
-- With roles they run with the rights of the owner and must check the login themselves; a login without the right sees
-- the column only in instances that it has inserted.
create or replace function @schema.may_read_column(named text)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  select session_user = current_user or (
    select i.roles is null or has_column_privilege(session_user, '@schema.instances'::regclass, named, 'select')
    from @schema.installation i
  )
$$;
