-- may_read: whether whoever has logged in may see a column of all instances. Without roles (roles.sql) the answer is yes:
-- functions run with the rights of their callers then, and those are checked anyway. With roles they run with the rights of
-- the owner, so they have to ask; whoever may not see a column sees it in the instances that he has started himself.
create or replace function @schema.may_read(named text)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select session_user = current_user or (
    select i.roles is null or has_column_privilege(session_user, '@schema.instances'::regclass, named, 'select')
    from @schema.installation i
  )
$$;
