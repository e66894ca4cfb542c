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
  foreign_names text;
begin
  select string_agg(object.name, ', ' order by object.name) filter (where object.place <= 5)
    || case when count(*) > 5 then format(' and %s more', count(*) - 5) else '' end into foreign_names
  from (select every.name, row_number() over (order by every.name) as place from (
    select found.name from (
@foreign_objects
    ) as found (name, function, installed_by)
    -- A function or view of ours was installed by this transaction, whatever its name and arguments are.
    where found.installed_by is distinct from pg_catalog.pg_current_xact_id()::xid
  ) as every) as object;
  if foreign_names is not null then
    raise exception 'schema @schema holds objects that are not gen_durable''s: %. Drop them or move them to another schema', foreign_names
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
    'insert', 'unblock_new_rows', 'allocate_ids', 'id_of_key', 'live_id_of_key', 'signal', 'signal_or_start', 'debounce', 'cancel',
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
    'pick', 'flush', 'lock_parent_and_allocate_ids', 'insert_instances_of_outcomes', 'inbox_page', 'children_page',
    'activities_page', 'cancel_requests_of', 'heartbeat', 'reap', 'unblock_missed_rows', 'release_claims', 'gc',
    'gc_rows_with_own_retention', 'gc_unused_ids', 'declare_retentions', 'declared_retentions', 'trim_history',
    'count_due_unknown_steps', 'unlocked_ids', 'set_limit', 'limit_states', 'acquire_step_limit', 'release_step_limit',
    'delete_full_rate_buckets', 'delete_tickets_of_dead_claims', 'record_checkpoint', 'clear_checkpoint',
    'record_activity', 'record_progress', 'history_of', 'activities_of', 'checkpoint_of', 'instances_of', 'list', 'count',
    'count_taken_slots', 'reject_signals_and_release_claims', 'retry_signals_others_rejected', 'signals_of',
    'rejected_signals'
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
