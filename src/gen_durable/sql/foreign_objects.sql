-- foreign_objects: what is in our schema, or hangs on our tables, and is not known to be gen_durable's.
--
-- A part of roles.sql, which refuses these objects, and of roles_check.sql, which reports them: they would run with the
-- rights of the owner, or show its rows.
-- Returns the description of each object, and for a function its name. Functions and the definitions of views are all
-- returned, with the transaction that has installed them: the caller decides which are ours. For others it is null.
-- Guarded by tests/security/test_roles_on_a_used_schema.py and tests/cli/test_doctor_roles.py.
select pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid), p.proname::text, p.xmin
from pg_catalog.pg_depend d
left join pg_catalog.pg_class c on d.classid = 'pg_catalog.pg_class'::regclass and c.oid = d.objid
left join pg_catalog.pg_type t on d.classid = 'pg_catalog.pg_type'::regclass and t.oid = d.objid
left join pg_catalog.pg_proc p on d.classid = 'pg_catalog.pg_proc'::regclass and p.oid = d.objid
where d.refclassid = 'pg_catalog.pg_namespace'::regclass and d.refobjid = '@schema'::regnamespace and d.deptype = 'n'
  and (c.relname = any (@relations)) is not true
  and (t.typname = any (@types)) is not true
  and not exists (  -- the sequence of an identity column
    select from pg_catalog.pg_depend owned join pg_catalog.pg_class owner_table on owner_table.oid = owned.refobjid
    where owned.classid = d.classid and owned.objid = d.objid and owned.deptype = 'i'
      and owned.refclassid = 'pg_catalog.pg_class'::regclass and owner_table.relname = any (@relations)
  )
union all
select pg_catalog.pg_describe_object('pg_catalog.pg_trigger'::regclass, trigger.oid, 0), null, null
from pg_catalog.pg_trigger trigger
join pg_catalog.pg_class c on c.oid = trigger.tgrelid and c.relnamespace = '@schema'::regnamespace
join pg_catalog.pg_proc p on p.oid = trigger.tgfoid and p.pronamespace <> c.relnamespace
where not trigger.tgisinternal
union all
select pg_catalog.pg_describe_object('pg_catalog.pg_rewrite'::regclass, rule.oid, 0), null,
  case when c.relkind = 'v' and rule.rulename = '_RETURN' then rule.xmin end
from pg_catalog.pg_rewrite rule
join pg_catalog.pg_class c on c.oid = rule.ev_class and c.relnamespace = '@schema'::regnamespace
union all
select pg_catalog.pg_describe_object('pg_catalog.pg_policy'::regclass, policy.oid, 0), null, null
from pg_catalog.pg_policy policy
join pg_catalog.pg_class c on c.oid = policy.polrelid and c.relnamespace = '@schema'::regnamespace
union all
-- An index of your own on plain columns runs no code.
select pg_catalog.pg_describe_object('pg_catalog.pg_class'::regclass, i.indexrelid, 0), null, null
from pg_catalog.pg_index i
join pg_catalog.pg_class c on c.oid = i.indexrelid and c.relnamespace = '@schema'::regnamespace
where c.relname <> all (@indexes) and (i.indexprs is not null or i.indpred is not null)
union all
-- A column, default, constraint or index that uses a function, operator, type or table from elsewhere. What Postgres
-- itself brings is not listed as a dependency.
select pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid), null, null
from pg_catalog.pg_depend d
left join pg_catalog.pg_constraint k on d.classid = 'pg_catalog.pg_constraint'::regclass and k.oid = d.objid
left join pg_catalog.pg_attrdef a on d.classid = 'pg_catalog.pg_attrdef'::regclass and a.oid = d.objid
join pg_catalog.pg_class c on c.relnamespace = '@schema'::regnamespace and c.oid = coalesce(
  k.conrelid, a.adrelid, case when d.classid = 'pg_catalog.pg_class'::regclass then d.objid end
)
left join pg_catalog.pg_proc p on d.refclassid = 'pg_catalog.pg_proc'::regclass and p.oid = d.refobjid
left join pg_catalog.pg_operator o on d.refclassid = 'pg_catalog.pg_operator'::regclass and o.oid = d.refobjid
left join pg_catalog.pg_opclass oc on d.refclassid = 'pg_catalog.pg_opclass'::regclass and oc.oid = d.refobjid
left join pg_catalog.pg_type t on d.refclassid = 'pg_catalog.pg_type'::regclass and t.oid = d.refobjid
left join pg_catalog.pg_class used on d.refclassid = 'pg_catalog.pg_class'::regclass and used.oid = d.refobjid
where coalesce(p.pronamespace, o.oprnamespace, oc.opcnamespace, t.typnamespace, used.relnamespace) <> c.relnamespace
union all
-- A child's rows would be read as ours; a reader of a parent reads its children.
select pg_catalog.pg_describe_object('pg_catalog.pg_class'::regclass, heir.inhrelid, 0), null, null
from pg_catalog.pg_inherits heir
join pg_catalog.pg_class c on c.oid = heir.inhparent and c.relnamespace = '@schema'::regnamespace and c.relkind = 'r'
union all
-- A foreign key of another table keeps rows from being deleted.
select pg_catalog.pg_describe_object('pg_catalog.pg_constraint'::regclass, k.oid, 0), null, null
from pg_catalog.pg_constraint k
join pg_catalog.pg_class c on c.oid = k.confrelid and c.relnamespace = '@schema'::regnamespace
where k.connamespace <> c.relnamespace
union all
-- ANALYZE evaluates the expressions of statistics, wherever those are, with the rights of the table's owner.
select pg_catalog.pg_describe_object('pg_catalog.pg_statistic_ext'::regclass, s.oid, 0), null, null
from pg_catalog.pg_statistic_ext s
join pg_catalog.pg_class c on c.oid = s.stxrelid and c.relnamespace = '@schema'::regnamespace
union all
-- A cast is in no schema, and is used whatever the search_path is.
select pg_catalog.pg_describe_object('pg_catalog.pg_cast'::regclass, every_cast.oid, 0), null, null
from pg_catalog.pg_cast every_cast
join pg_catalog.pg_type t on t.oid in (every_cast.castsource, every_cast.casttarget)
where t.typnamespace = '@schema'::regnamespace
union all
select format('row level security of table %s', c.oid::regclass), null, null
from pg_catalog.pg_class c
where c.relnamespace = '@schema'::regnamespace and (c.relrowsecurity or c.relforcerowsecurity)
