-- roles: create the roles and grant them their rights. Idempotent.
--
-- migrate runs it last, once roles were requested, in the transaction that has installed the views and functions again.
-- All objects belong to @owner, which cannot log in. Functions run with the rights of their owner, and only the roles
-- that are granted a function can call it. Only functions write to tables.
-- An object that is not ours would run with the rights of the owner, or would be given to it, so the first statement
-- refuses a schema that has one. The second refuses roles of another installation: roles belong to the whole cluster. The
-- third changes owners, and revokes every right that somebody has had before.

do $foreign$
declare
  relations constant text[] := @relations;
  types constant text[] := @types;
  indexes constant text[] := @indexes;
  found text;
begin
  select string_agg(object.name, ', ' order by object.name) filter (where object.place <= 5)
    || case when count(*) > 5 then format(' and %s more', count(*) - 5) else '' end into found
  from (select every.name, row_number() over (order by every.name) as place from (
    select pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid) as name
    from pg_catalog.pg_depend d
    left join pg_catalog.pg_class c on d.classid = 'pg_catalog.pg_class'::regclass and c.oid = d.objid
    left join pg_catalog.pg_type t on d.classid = 'pg_catalog.pg_type'::regclass and t.oid = d.objid
    left join pg_catalog.pg_proc p on d.classid = 'pg_catalog.pg_proc'::regclass and p.oid = d.objid
    where d.refclassid = 'pg_catalog.pg_namespace'::regclass and d.refobjid = '@schema'::regnamespace and d.deptype = 'n'
      and (c.relname = any (relations)) is not true
      and (t.typname = any (types)) is not true
      -- A function of ours was installed by this transaction, whatever its name and arguments are.
      and (p.xmin = pg_catalog.pg_current_xact_id()::xid) is not true
      and not exists (  -- the sequence of an identity column
        select from pg_catalog.pg_depend owned join pg_catalog.pg_class owner_table on owner_table.oid = owned.refobjid
        where owned.classid = d.classid and owned.objid = d.objid and owned.deptype = 'i'
          and owned.refclassid = 'pg_catalog.pg_class'::regclass and owner_table.relname = any (relations)
      )
    union all
    select pg_catalog.pg_describe_object('pg_catalog.pg_trigger'::regclass, trigger.oid, 0)
    from pg_catalog.pg_trigger trigger
    join pg_catalog.pg_class c on c.oid = trigger.tgrelid and c.relnamespace = '@schema'::regnamespace
    join pg_catalog.pg_proc p on p.oid = trigger.tgfoid and p.pronamespace <> c.relnamespace
    where not trigger.tgisinternal
    union all
    select pg_catalog.pg_describe_object('pg_catalog.pg_rewrite'::regclass, rule.oid, 0)
    from pg_catalog.pg_rewrite rule
    join pg_catalog.pg_class c on c.oid = rule.ev_class and c.relnamespace = '@schema'::regnamespace
    where c.relkind <> 'v' or rule.rulename <> '_RETURN'
      or rule.xmin <> pg_catalog.pg_current_xact_id()::xid  -- as for functions: a view of ours was installed just now
    union all
    select pg_catalog.pg_describe_object('pg_catalog.pg_policy'::regclass, policy.oid, 0)
    from pg_catalog.pg_policy policy
    join pg_catalog.pg_class c on c.oid = policy.polrelid and c.relnamespace = '@schema'::regnamespace
    union all
    -- An index of your own on plain columns runs no code.
    select pg_catalog.pg_describe_object('pg_catalog.pg_class'::regclass, i.indexrelid, 0)
    from pg_catalog.pg_index i
    join pg_catalog.pg_class c on c.oid = i.indexrelid and c.relnamespace = '@schema'::regnamespace
    where c.relname <> all (indexes) and (i.indexprs is not null or i.indpred is not null)
    union all
    -- A column, default, constraint or index that uses a function, operator, type or table from elsewhere. What Postgres
    -- itself brings is not listed as a dependency.
    select pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
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
    -- A child's rows would be read as ours; whoever may read a parent reads its children.
    select pg_catalog.pg_describe_object('pg_catalog.pg_class'::regclass, heir.inhrelid, 0)
    from pg_catalog.pg_inherits heir
    join pg_catalog.pg_class c on c.oid = heir.inhparent and c.relnamespace = '@schema'::regnamespace and c.relkind = 'r'
    union all
    -- A foreign key of another table keeps rows from being deleted.
    select pg_catalog.pg_describe_object('pg_catalog.pg_constraint'::regclass, k.oid, 0)
    from pg_catalog.pg_constraint k
    join pg_catalog.pg_class c on c.oid = k.confrelid and c.relnamespace = '@schema'::regnamespace
    where k.connamespace <> c.relnamespace
    union all
    -- ANALYZE evaluates the expressions of statistics, wherever those are, with the rights of the table's owner.
    select pg_catalog.pg_describe_object('pg_catalog.pg_statistic_ext'::regclass, s.oid, 0)
    from pg_catalog.pg_statistic_ext s
    join pg_catalog.pg_class c on c.oid = s.stxrelid and c.relnamespace = '@schema'::regnamespace
    union all
    -- A cast is in no schema, and is used whatever the search_path is.
    select pg_catalog.pg_describe_object('pg_catalog.pg_cast'::regclass, every_cast.oid, 0)
    from pg_catalog.pg_cast every_cast
    join pg_catalog.pg_type t on t.oid in (every_cast.castsource, every_cast.casttarget)
    where t.typnamespace = '@schema'::regnamespace
    union all
    select format('row level security of table %s', c.oid::regclass)
    from pg_catalog.pg_class c
    where c.relnamespace = '@schema'::regnamespace and (c.relrowsecurity or c.relforcerowsecurity)
  ) as every) as object;
  if found is not null then
    raise exception 'schema @schema holds objects that are not gen_durable''s: %. Drop them or move them to another schema', found
      using errcode = '42P17';
  end if;
end
$foreign$;

do $roles_of_this_installation$
declare
  role text;
  mark constant text := format('gen_durable: schema %s of database %s', '@schema'::regnamespace, current_database());
  found_mark text;
begin
  foreach role in array array['@owner', '@worker', '@client', '@producer', '@reader', '@viewer', '@admin'] loop
    select coalesce(pg_catalog.shobj_description(r.oid, 'pg_authid'), '') into found_mark
    from pg_catalog.pg_roles r where r.rolname = role;
    if not found then
      execute format('create role %I nologin', role);
      execute format('comment on role %I is %L', role, mark);
    elsif found_mark <> mark then
      raise exception 'role % exists and is not of this schema and database (%). Use --role-prefix, or, if it is yours, run: comment on role % is %',
        role, coalesce(nullif(found_mark, ''), 'it has no comment'), quote_ident(role), quote_literal(mark)
        using errcode = '42939';
    end if;
  end loop;
  if not pg_catalog.pg_has_role(current_user, '@owner', 'usage') then
    grant @owner to current_user;
  end if;
end
$roles_of_this_installation$;

do $roles$
declare
  one record;
  -- Payloads: the codec encrypts them, and viewers cannot read them.
  payloads constant text[] := array[
    'instances.state', 'instances.result', 'instances.last_error', 'instances.last_traceback', 'signals.payload',
    'transitions.error', 'transitions.traceback', 'transitions.state', 'checkpoints.value', 'activities.parameters',
    'activities.result', 'activities.error', 'progress.message', 'progress.detail', 'step_status.message',
    'step_status.detail', 'step_status.error'
  ];
  -- Insert; signal, cancel and read the instances that the login itself has inserted.
  producer constant text[] := array[
    'insert', 'allocate_ids', 'id_of_key', 'live_id_of_key', 'signal', 'signal_or_start', 'debounce', 'cancel',
    'cancel_listed_descendants',
    'ends_of', 'get', 'progress_of', 'notify_workers'
  ];
  -- Also signal and cancel the instances of others.
  client constant text[] := producer || array['may_change_instances_of_others'];
  viewer constant text[] := array['get', 'instances_of', 'list', 'count', 'history_of', 'activities_of', 'checkpoint_of',
    'progress_of', 'limit_states', 'count_taken_slots', 'signals_of', 'rejected_signals'];
  -- As a viewer, but the table grants below include payloads.
  reader constant text[] := viewer || array['id_of_key', 'ends_of'];
  worker constant text[] := client || array[
    'pick', 'flush', 'lock_parent_and_allocate_ids', 'insert_started_instances', 'inbox_page', 'children_page',
    'activities_page', 'cancel_requests_of', 'heartbeat', 'reap', 'unblock_missed_rows', 'release_claims', 'gc',
    'gc_rows_past_own_keep', 'gc_unused_ids', 'declare_retentions', 'declared_retentions', 'trim_history',
    'count_due_unknown_steps', 'unlocked_ids', 'set_limit', 'limit_states', 'acquire_step_limit', 'release_step_limit',
    'delete_full_rate_buckets', 'record_checkpoint', 'clear_checkpoint', 'record_activity', 'record_progress', 'history_of',
    'activities_of', 'checkpoint_of', 'instances_of', 'list', 'count', 'count_taken_slots',
    'reject_signals_and_release_claims', 'retry_signals_others_rejected', 'signals_of', 'rejected_signals'
  ];
  admin constant text[] := client || viewer || array[
    'retry', 'delete_instance', 'set_limit', 'remove_limit', 'restore_signals', 'delete_signals',
    'payloads_page', 'replace_payloads'
  ];
begin
  alter schema @schema owner to @owner;
  alter type @schema.durable_status owner to @owner;
  for one in
    select c.oid::regclass as name from pg_catalog.pg_class c
    where c.relnamespace = '@schema'::regnamespace and c.relkind in ('r', 'v')
  loop
    execute format('alter table %s owner to @owner', one.name);
  end loop;
  for one in
    select p.oid::regprocedure as name from pg_catalog.pg_proc p where p.pronamespace = '@schema'::regnamespace
  loop
    execute format('alter function %s owner to @owner', one.name);
  end loop;

  -- Whatever anybody was granted before: an access list that is null stands for the default.
  for one in
    select distinct object.kind, object.name, case when right_.grantee = 0 then 'public' else right_.grantee::regrole::text end as grantee
    from (
      select 'schema' as kind, n.oid::regnamespace::text as name, n.nspowner as owner,
        coalesce(n.nspacl, pg_catalog.acldefault('n', n.nspowner)) as rights
      from pg_catalog.pg_namespace n where n.oid = '@schema'::regnamespace
      union all
      select 'type', t.oid::regtype::text, t.typowner, coalesce(t.typacl, pg_catalog.acldefault('T', t.typowner))
      from pg_catalog.pg_type t where t.typnamespace = '@schema'::regnamespace and t.typname = any (@types)
      union all
      select case c.relkind when 'S' then 'sequence' else 'table' end, c.oid::regclass::text, c.relowner, c.relacl
      from pg_catalog.pg_class c where c.relnamespace = '@schema'::regnamespace and c.relkind in ('r', 'v', 'S')
      union all
      select 'table', c.oid::regclass::text, c.relowner, a.attacl
      from pg_catalog.pg_class c join pg_catalog.pg_attribute a on a.attrelid = c.oid
      where c.relnamespace = '@schema'::regnamespace and c.relkind in ('r', 'v')
      union all
      select 'function', p.oid::regprocedure::text, p.proowner,
        coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))
      from pg_catalog.pg_proc p where p.pronamespace = '@schema'::regnamespace
    ) as object
    cross join lateral pg_catalog.aclexplode(object.rights) as right_
    where right_.grantee <> object.owner
  loop
    execute format('revoke all on %s %s from %s cascade', one.kind, one.name, one.grantee);
  end loop;

  for one in
    select c.oid::regclass as name from pg_catalog.pg_class c
    where c.relnamespace = '@schema'::regnamespace and c.relkind in ('r', 'v')
  loop
    execute format('grant select on %s to @worker, @reader, @admin', one.name);
  end loop;
  grant usage on schema @schema to @worker, @client, @producer, @reader, @viewer, @admin;
  grant select on @schema.migrations, @schema.installation to @client, @producer;
  grant select on @schema.gate_locks to @viewer;  -- also its system columns, which the doctor reads
  for one in
    select c.oid::regclass as name, string_agg(quote_ident(a.attname), ', ') as columns
    from pg_catalog.pg_class c
    join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.relnamespace = '@schema'::regnamespace and c.relkind in ('r', 'v')
      and c.relname || '.' || a.attname <> all (payloads)
    group by c.oid
  loop
    execute format('grant select (%s) on %s to @viewer', one.columns, one.name);
  end loop;

  for one in
    select p.oid::regprocedure as name, p.proname::text as word, p.provolatile <> 'i' as reads_tables
    from pg_catalog.pg_proc p
    where p.pronamespace = '@schema'::regnamespace
  loop
    if one.reads_tables then  -- a security definer function is never inlined (gate_name.sql)
      execute format('alter function %s security definer', one.name);
    end if;
    if one.word = any (worker) then execute format('grant execute on function %s to @worker', one.name); end if;
    if one.word = any (client) then execute format('grant execute on function %s to @client', one.name); end if;
    if one.word = any (producer) then execute format('grant execute on function %s to @producer', one.name); end if;
    if one.word = any (reader) then execute format('grant execute on function %s to @reader', one.name); end if;
    if one.word = any (viewer) then execute format('grant execute on function %s to @viewer', one.name); end if;
    if one.word = any (admin) then execute format('grant execute on function %s to @admin', one.name); end if;
  end loop;
  -- A role that is created later may get the number of a dropped login, and would get its grants.
  delete from @schema.restricted_logins restricted
  where not exists (select from pg_catalog.pg_roles r where r.oid = restricted.login);
  update @schema.installation set roles = '@prefix';
end
$roles$;
