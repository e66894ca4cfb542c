-- debounce: insert an instance that waits for a delay or, if one waits under the key, restart its delay and replace its
-- state by the newest.
--
-- Parameters: the key; start: the instance, as insert_if_key_free.sql takes it, with a delay; its unique_scope is set here.
-- max_delay: seconds from the insert of the instance after which it is not postponed further, or null. holder, state: for
-- states that are encrypted for one instance: `state` is for this holder, the one in `start` for the id in `start`.
-- If another instance holds the key, the verdict is 'other_holder' and nothing is written.
-- Returns the instance; a verdict: 'started', 'restarted', 'taken' (the key is held by an instance of another machine,
-- or by one that has begun) or 'other_holder'; the queue to wake; cascade_origin, if gates were freed.
-- An instance holds the key while it is runnable for the first time. The claim that begins it frees the key, so a later
-- call inserts a new instance. A row whose delay has passed and that waits at a gate keeps its place; a row that moves
-- may have been the next of its gates, so these are listed in cascades, as by a cancel in a caller's transaction.
-- For a login that may change only its own instances (may_change_others.sql), the key of another is 'taken'; its row is
-- not locked.
-- The grants of the login (require_granted.sql) are checked for a new instance, and for the queue and priority of a
-- waiting one; a restart counts against no quota.
-- Index: instances_unique.
-- Locks: the holder's row, waiting for a pick that claims it; without one the key, as insert.
-- Guarded by tests/interleavings/test_debounce.py.
create or replace function @schema.debounce(
  key bytea, start jsonb, max_delay float8, holder bigint, state jsonb,
  out target bigint, out verdict text, out woken_queue text, out cascade_origin bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  changes_all constant boolean := session_user = current_user or @schema.may_change_others();
  login constant oid := case when not changes_all then @schema.session_login() end;
  delay constant interval := make_interval(secs => coalesce((start ->> 'delay')::float8, 0));
  waiting record;
  gates text[];
begin
  for try in 1..20 loop
    select i.id, i.queue, i.fsm = start ->> 'fsm' and i.status = 'runnable' and i.claims = 0 as has_not_begun,
           i.blocked_on is null and i.token_at is null as moves, i.partition_key, i.slot_key, i.rate_key,
           i.priority
    into waiting
    from @schema.instances i where i.unique_guard = key and (changes_all or i.inserted_by = login)
    for no key update;
    if not found then
      target := @schema.insert_if_key_free(key, start || '{"unique_scope": "{runnable}"}');
      if target is null and not changes_all and exists (
        select from @schema.instances i where i.unique_guard = key and i.inserted_by is distinct from login
      ) then
        verdict := 'taken';
        if start ? 'id' then
          perform @schema.discard_allocated_id(start);
        end if;
        return;
      end if;
      continue when target is null;
      verdict := 'started';
      woken_queue := coalesce(start ->> 'queue', 'default');
      return;
    end if;

    target := waiting.id;
    if not waiting.has_not_begun then
      verdict := 'taken';
      if start ? 'id' then
        perform @schema.discard_allocated_id(start);
      end if;
      return;
    elsif start ? 'id' and target is distinct from holder then
      verdict := 'other_holder';
      return;
    end if;
    perform @schema.require_valid_starts(
      array[start ->> 'fsm'], array[coalesce((start ->> 'version')::int, 1)], array[start ->> 'step'],
      array[coalesce(debounce.state, start -> 'state', 'null')], array[waiting.queue], '{}',
      array[coalesce((start ->> 'delay')::float8, 0)], '{}', '{}', '{}', '{}', '{}'
    );
    if session_user <> current_user then
      perform @schema.require_granted(
        @schema.session_login(), array[start ->> 'fsm'], array[waiting.queue], array[waiting.priority],
        array[waiting.partition_key]
      );
    end if;
    update @schema.instances i set
      state = coalesce(debounce.state, start -> 'state', 'null'),
      step = start ->> 'step',
      fsm_version = coalesce((start ->> 'version')::int, 1),
      eligible_at = case
        when waiting.moves then greatest(
          now(), least(statement_timestamp() + delay, i.inserted_at + make_interval(secs => max_delay))
        )
        else i.eligible_at
      end,
      updated_at = now()
    where i.id = target;
    verdict := 'restarted';
    if start ? 'id' then
      perform @schema.discard_allocated_id(start);
    end if;
    woken_queue := waiting.queue;
    gates := array_remove(array[
      @schema.gate_name('partition', waiting.partition_key), @schema.gate_name('slot', waiting.slot_key),
      @schema.gate_name('rate', waiting.rate_key)
    ], null);
    if waiting.moves and cardinality(gates) > 0 then
      insert into @schema.cascades (origin, reason, gates) values (target, 'debounced', gates);
      cascade_origin := target;
    end if;
    return;
  end loop;
  raise exception 'the holder of the unique key kept changing' using errcode = '40001';
end
$$;

-- From psql or any other client; the workers are notified by the commit unless notify is false (notify_workers.sql).
create or replace function @schema.debounce(
  key text, start jsonb, max_delay interval default null, notify boolean default true
)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  debounced record;
begin
  select * into debounced
  from @schema.debounce(convert_to(key, 'UTF8'), start - 'id', extract(epoch from max_delay)::float8, null, null);
  if debounced.verdict = 'taken' then
    -- Without an id it is the instance of a login that the caller may not know.
    raise exception 'the unique key is taken by %, which cannot be postponed',
      coalesce('instance ' || debounced.target, 'an instance of another login')
      using errcode = 'GD001', detail = encode(convert_to(key, 'UTF8'), 'hex'), hint = coalesce(debounced.target::text, '');
  end if;
  if notify then
    perform @schema.notify_workers('queue', array[debounced.woken_queue]),
      @schema.notify_workers('cancel_children', array[debounced.cascade_origin::text]);
  end if;
  return debounced.target;
end
$$;

comment on function @schema.debounce(bytea, jsonb, float8, bigint, jsonb) is
  'Inserts an instance that waits for a delay, or restarts the delay of the one that waits under the unique key.';

comment on function @schema.debounce(text, jsonb, interval, boolean) is
  'Inserts an instance that waits for a delay or, if one waits under the unique key, restarts its delay and replaces '
  'its state: select gen_durable.debounce(''reindex:7'', ''{"fsm": "Reindex", "step": "start", "state": {"doc": 7}, '
  '"delay": 5}'', max_delay => ''1 minute''). max_delay bounds the wait since the first call. Returns the id of the '
  'instance. Your commit wakes the workers; with notify => false they find the instance when they poll.';
