-- signal_or_start: deliver a signal to the live holder of a unique key or, if the key is free, insert an instance that
-- has the signal in its inbox. Never both, never neither, and never two instances.
--
-- Parameters: the key; the signal; start: the instance, as insert_if_key_free.sql takes it, with the signal among its `signals`.
-- holder: for payloads that are encrypted for one instance. `payload` is for this holder, those in `start` are for the
-- id in `start`. If another instance holds the key, the verdict is 'other_holder' and nothing is written.
-- Returns the instance; a verdict: 'started', 'delivered', 'duplicate' (an instance of this key has received the dedup
-- key before), 'no_target' (the key is kept by an instance that has ended), 'full' or 'other_holder'; the queue to wake.
-- A dedup key counts for all instances that were inserted under the key, the newest 1,000 of them: so a repeated call is
-- recognised even if the instance that the first one started has ended. It is looked for while this transaction has the
-- key, by the lock on its holder or by its own new row: no instance of the key can begin or end in between.
-- Index: instances_unique, instances_key, signals_dedup.
-- For a login that may change only its own instances (may_change_instances_of_others.sql), a holder of another is
-- 'no_target', its row is not locked, and the dedup keys of others do not count.
-- Locks: the holder's row; without one the key, as insert. A holder that ends while its lock is waited for leaves the key
-- free, and a key that is taken while it is inserted has a holder: each is seen by the next try.
-- Guarded by tests/interleavings/test_signal_or_start.py.
create or replace function @schema.signal_or_start(
  key bytea, name text, payload jsonb, dedup_key text, start jsonb, holder bigint,
  out target bigint, out verdict text, out woken_queue text
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
set enable_hashjoin = off
as $$
#variable_conflict use_variable
declare
  changes_all constant boolean := session_user = current_user or @schema.may_change_instances_of_others();
  login constant oid := case when not changes_all then @schema.session_login() end;
  new_id bigint;
  receiver bigint;  -- the instance that has the dedup key
begin
  if dedup_key is not null then
    perform @schema.require_read_committed();  -- the dedup key is looked for after the lock
  end if;
  for try in 1..20 loop
    select i.id into target from @schema.instances i
    where i.unique_guard = key and (changes_all or i.inserted_by = login)
    for no key update;
    if target is null then
      new_id := @schema.insert_if_key_free(key, start);
      if new_id is null and not changes_all and exists (
        select from @schema.instances i where i.unique_guard = key and i.inserted_by is distinct from login
      ) then
        verdict := 'no_target';
        if start ? 'id' then
          perform @schema.discard_allocated_id(start);
        end if;
        return;
      end if;
      continue when new_id is null;
    end if;

    if dedup_key is not null then
      select s.target_id into receiver
      from (
        select i.id from @schema.instances i
        where i.unique_key = key and i.id is distinct from new_id and (changes_all or i.inserted_by = login)
        order by i.id desc limit 1000
      ) as earlier
      join @schema.signals s on s.target_id = earlier.id and s.dedup_key = signal_or_start.dedup_key
        and s.rejection is null  -- as in signal
      limit 1;
      if found then
        delete from @schema.instances i where i.id = new_id;
        target := receiver;
        verdict := 'duplicate';
        if start ? 'id' then
          perform @schema.discard_allocated_id(start);
        end if;
        return;
      end if;
    end if;

    if new_id is not null then
      target := new_id;
      verdict := 'started';
      select i.queue into woken_queue from @schema.instances i where i.id = new_id;
    elsif start ? 'id' and target is distinct from holder then
      verdict := 'other_holder';
    else
      select delivery.verdict, delivery.woken_queue into verdict, woken_queue
      from @schema.signal(array[target], array[null::bytea], array[name], array[payload], array[dedup_key]) as delivery;
      if start ? 'id' then
        perform @schema.discard_allocated_id(start);
      end if;
    end if;
    return;
  end loop;
  raise exception 'the holder of the unique key kept changing' using errcode = '40001';
end
$$;

-- From psql or any other client: `start` without signals, and the workers are notified by the commit unless notify is
-- false (notify_workers.sql).
create or replace function @schema.signal_or_start(
  key text, name text, payload jsonb, start jsonb, dedup_key text default null, notify boolean default true
)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  first_signal constant jsonb := jsonb_build_object('name', name, 'payload', payload, 'dedup_key', dedup_key);
  delivery record;
begin
  select * into delivery from @schema.signal_or_start(
    convert_to(key, 'UTF8'), name, payload, dedup_key,
    start - 'id' || jsonb_build_object('signals', coalesce(start -> 'signals', '[]') || first_signal), null
  );
  if notify then
    perform @schema.notify_workers('queue', array[delivery.woken_queue]);
  end if;
  return delivery.verdict;
end
$$;

comment on function @schema.signal_or_start(bytea, text, jsonb, text, jsonb, bigint) is
  'Delivers a signal to the live instance that holds a unique key, or inserts an instance that has it in its inbox.';

comment on function @schema.signal_or_start(text, text, jsonb, jsonb, text, boolean) is
  'Delivers a signal to the live instance that holds a unique key or, if the key is free, inserts an instance that has '
  'it in its inbox: select gen_durable.signal_or_start(''order:42'', ''payment'', ''{"amount": 100}'', '
  'start => ''{"fsm": "Checkout", "step": "start", "state": {"id": 42}}''). start may also have version, queue, '
  'priority, partition_key, delay, schedule_at, unique_scope, limits, group_key, metadata, keep and signals. Returns '
  'started, delivered, duplicate (the dedup_key was used before), no_target (the key is kept by an instance that has '
  'ended) or full. Your commit wakes the workers; with notify => false they find the work when they poll.';
