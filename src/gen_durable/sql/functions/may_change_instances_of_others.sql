-- may_change_instances_of_others: true if the session user may signal and cancel instances that other logins have inserted.
--
-- Without roles (roles.sql) it is always true: functions run with the rights of their callers, which Postgres checks.
-- With roles the right to call this function stands for it: a producer has none, so the instances of others do not exist
-- for its signals and cancels (ids_of_own_instances.sql).
create or replace function @schema.may_change_instances_of_others()
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  select session_user = current_user or (
    select i.roles is null
      or has_function_privilege(session_user, '@schema.may_change_instances_of_others()'::regprocedure, 'execute')
    from @schema.installation i
  )
$$;

comment on function @schema.may_change_instances_of_others() is
  'Returns whether your login may signal and cancel instances that other logins have inserted.';
