-- roles: create the roles and grant them their rights. migrate runs it last, once roles were requested; idempotent.
--
-- All objects belong to @owner, which cannot log in. Functions run with the rights of their owner, and only the roles
-- that are granted a function can call it. Only functions write to tables.
do $roles$
declare
  one record;
  role text;
  -- Payloads: the codec encrypts them, and viewers cannot read them.
  payloads constant text[] := array[
    'instances.state', 'instances.result', 'instances.last_error', 'instances.last_traceback', 'signals.payload',
    'transitions.error', 'transitions.traceback', 'transitions.state', 'checkpoints.value', 'activities.parameters',
    'activities.result', 'activities.error', 'progress.message', 'progress.detail', 'step_status.message',
    'step_status.detail', 'step_status.error'
  ];
  -- Insert, signal and cancel; read the instances that the login itself has inserted.
  client constant text[] := array[
    'insert', 'allocate_ids', 'id_of_key', 'live_id_of_key', 'signal', 'signal_or_start', 'debounce', 'cancel', 'cascade', 'ends_of', 'get', 'progress_of',
    'notify_workers'
  ];
  viewer constant text[] := array['get', 'instances_of', 'list', 'count', 'history_of', 'activities_of', 'checkpoint_of',
    'progress_of', 'limit_states', 'count_taken_slots', 'signals_of', 'rejected_signals'];
  worker constant text[] := client || array[
    'pick', 'flush', 'lock_parent_and_allocate_ids', 'start_instances', 'inbox_page', 'children_page',
    'activities_page', 'cancel_requests_of', 'heartbeat', 'reap', 'unblock_missed', 'release_claims', 'gc', 'gc_kept',
    'declare_retentions', 'declared_retentions', 'trim_history',
    'count_due_unknown_steps', 'unlocked_ids', 'set_limit', 'limit_states', 'acquire_step_limit', 'release_step_limit',
    'delete_full_buckets', 'record_checkpoint', 'clear_checkpoint', 'record_activity', 'record_progress', 'history_of',
    'activities_of', 'checkpoint_of', 'instances_of', 'list', 'count', 'count_taken_slots', 'reject_unreadable_signals',
    'retry_rejected_signals', 'signals_of', 'rejected_signals'
  ];
  admin constant text[] := client || viewer || array[
    'retry', 'delete_instance', 'set_limit', 'remove_limit', 'restore_signals', 'delete_signals',
    'payloads_page', 'replace_payloads'
  ];
begin
  foreach role in array array['@owner', '@worker', '@client', '@viewer', '@admin'] loop
    if not exists (select from pg_catalog.pg_roles r where r.rolname = role) then
      execute format('create role %I nologin', role);
    end if;
  end loop;
  if not pg_catalog.pg_has_role(current_user, '@owner', 'usage') then
    grant @owner to current_user;
  end if;

  alter schema @schema owner to @owner;
  for one in
    select c.oid::regclass as name from pg_catalog.pg_class c
    where c.relnamespace = '@schema'::regnamespace and c.relkind in ('r', 'v')
  loop
    execute format('alter table %s owner to @owner', one.name);
    execute format('revoke all on %s from public, @worker, @client, @viewer, @admin', one.name);
    execute format('grant select on %s to @worker, @admin', one.name);
  end loop;
  alter type @schema.durable_status owner to @owner;
  revoke all on schema @schema from public, @worker, @client, @viewer, @admin;
  grant usage on schema @schema to @worker, @client, @viewer, @admin;
  grant select on @schema.migrations, @schema.installation to @client;
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
    execute format('alter function %s owner to @owner', one.name);
    if one.reads_tables then  -- a security definer function is never inlined (gate_name.sql)
      execute format('alter function %s security definer', one.name);
    end if;
    execute format('revoke all on function %s from public, @worker, @client, @viewer, @admin', one.name);
    if one.word = any (worker) then execute format('grant execute on function %s to @worker', one.name); end if;
    if one.word = any (client) then execute format('grant execute on function %s to @client', one.name); end if;
    if one.word = any (viewer) then execute format('grant execute on function %s to @viewer', one.name); end if;
    if one.word = any (admin) then execute format('grant execute on function %s to @admin', one.name); end if;
  end loop;
  update @schema.installation set roles = '@prefix';
end
$roles$;
