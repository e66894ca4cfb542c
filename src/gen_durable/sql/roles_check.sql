-- The doctor's check of an installation with roles: each row is one difference from what roles.sql makes.
--
-- Reads catalogs only, which every login may read. @functions and @relations are the names of our own objects, @granted
-- has ROLE.FUNCTION for each right of roles.sql, @payloads TABLE.COLUMN for what viewers cannot read, and
-- @foreign_objects is foreign_objects.sql.
-- Guarded by tests/cli/test_doctor_roles.py.
with ours as (
  select n.oid as schema, owner.oid as owner,
    array(
      select r.oid from pg_catalog.pg_roles r where r.rolname = any (array[
        '@owner', '@worker', '@client', '@producer', '@reader', '@viewer', '@admin'
      ])
    ) as roles
  from pg_catalog.pg_namespace n left join pg_catalog.pg_roles owner on owner.rolname = '@owner'
  where n.oid = '@schema'::regnamespace
),
objects as (
  select 'schema' as kind, n.oid::regnamespace::text as name, n.nspowner as owner,
    coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner)) as rights
  from ours join pg_catalog.pg_namespace n on n.oid = ours.schema
  union all
  select case c.relkind when 'S' then 'sequence' else 'table' end, c.oid::regclass::text, c.relowner, c.relacl
  from ours join pg_catalog.pg_class c on c.relnamespace = ours.schema and c.relkind in ('r', 'v', 'S')
  union all
  select 'column', format('%s.%I', c.oid::regclass, a.attname), c.relowner, a.attacl
  from ours join pg_catalog.pg_class c on c.relnamespace = ours.schema and c.relkind in ('r', 'v')
  join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attacl is not null
  union all
  select 'type', t.oid::regtype::text, t.typowner, coalesce(t.typacl, pg_catalog.acldefault('T', t.typowner))
  from ours join pg_catalog.pg_type t on t.typnamespace = ours.schema and t.typtype = 'e'
  union all
  select 'function', p.oid::regprocedure::text, p.proowner,
    coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))
  from ours join pg_catalog.pg_proc p on p.pronamespace = ours.schema
),
-- What each role of ours may read: the grants of SELECT in roles.sql.
readable as (
  select 'table' as kind, c.oid::regclass::text as name, r.oid as role
  from ours join pg_catalog.pg_class c on c.relnamespace = ours.schema and c.relkind in ('r', 'v')
  join pg_catalog.pg_roles r on r.rolname in ('@worker', '@reader', '@admin')
    or (r.rolname in ('@client', '@producer') and c.relname in ('migrations', 'installation'))
    or (r.rolname = '@viewer' and c.relname = 'gate_locks')
  where c.relname = any (@relations)
  union all
  select 'column', format('%s.%I', c.oid::regclass, a.attname), r.oid
  from ours join pg_catalog.pg_class c on c.relnamespace = ours.schema and c.relkind in ('r', 'v')
  join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  join pg_catalog.pg_roles r on r.rolname = '@viewer'
  where c.relname = any (@relations) and c.relname || '.' || a.attname <> all (@payloads)
)
select format('%s %s belongs to %s, not to @owner', object.kind, object.name, object.owner::regrole) as problem
from ours, objects as object
where object.owner is distinct from ours.owner and object.kind <> 'column'
union
select format('%s may %s the %s %s', case right_.grantee when 0 then 'public' else right_.grantee::regrole::text end,
  lower(right_.privilege_type), object.kind, object.name)
from ours, objects as object, lateral pg_catalog.aclexplode(object.rights) as right_
where right_.grantee <> object.owner and (
  right_.grantee <> all (ours.roles)
  or right_.privilege_type <> case object.kind when 'schema' then 'USAGE' when 'function' then 'EXECUTE' else 'SELECT' end
  or right_.is_grantable
  or (right_.privilege_type = 'SELECT' and not exists (
    select from readable
    where readable.kind = object.kind and readable.name = object.name and readable.role = right_.grantee
  ))
)
union
select format('function %s has no pinned search_path', p.oid::regprocedure)
from ours join pg_catalog.pg_proc p on p.pronamespace = ours.schema
where p.prosqlbody is null and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)
union
select format('function %s does not run with the rights of its owner', p.oid::regprocedure)
from ours join pg_catalog.pg_proc p on p.pronamespace = ours.schema
where p.provolatile <> 'i' and not p.prosecdef
union
select format('%s is not gen_durable''s', found.name)
from (
@foreign_objects
) as found (name, function, installed_by)
where found.installed_by is null or found.function <> all (@functions)
union
select format(
  case when wanted.is_granted then '%s may not execute the function %s, which it needs'
    else '%s may execute the function %s, which is not for it' end,
  r.rolname, p.oid::regprocedure
)
from ours join pg_catalog.pg_proc p on p.pronamespace = ours.schema
join pg_catalog.pg_roles r on r.oid = any (ours.roles) and r.oid <> ours.owner
cross join lateral (
  select right(r.rolname, -length('@prefix_')) || '.' || p.proname = any (@granted)
) as wanted (is_granted)
where wanted.is_granted <> exists (
  select from pg_catalog.aclexplode(p.proacl) as right_ where right_.grantee = r.oid and right_.privilege_type = 'EXECUTE'
)
union
select format('%s may not use the schema', r.rolname)
from ours join pg_catalog.pg_namespace n on n.oid = ours.schema
join pg_catalog.pg_roles r on r.oid = any (ours.roles) and r.oid <> ours.owner
where not exists (
  select from pg_catalog.aclexplode(n.nspacl) as right_ where right_.grantee = r.oid and right_.privilege_type = 'USAGE'
)
union
select format('%s may not read the %s %s, which it needs', readable.role::regrole, readable.kind, readable.name)
from readable
where not exists (
  select from objects as object, lateral pg_catalog.aclexplode(object.rights) as right_
  where object.kind = readable.kind and object.name = readable.name
    and right_.grantee = readable.role and right_.privilege_type = 'SELECT'
)
union
select format('role %s does not exist', wanted.name)
from unnest(array['@owner', '@worker', '@client', '@producer', '@reader', '@viewer', '@admin']) as wanted (name)
where not exists (select from pg_catalog.pg_roles r where r.rolname = wanted.name)
union
select format('role %s is not marked as a role of this schema and database by its comment', r.rolname)
from ours join pg_catalog.pg_roles r on r.oid = any (ours.roles)
where coalesce(pg_catalog.shobj_description(r.oid, 'pg_authid'), '')
  <> format('gen_durable: schema %s of database %s', '@schema'::regnamespace, current_database())
union
select format('role %s can log in', r.rolname)
from ours join pg_catalog.pg_roles r on r.oid = any (ours.roles)
where r.rolcanlogin
order by 1
