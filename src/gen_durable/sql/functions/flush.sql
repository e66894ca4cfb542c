-- flush: commit a batch of outcomes.
--
-- Parameters: one array per column, in ascending order of distinct ids; an array whose values are all null may be
-- shorter.
--   ids, claims, seqs  the fence: id, epoch and seq of the claim as the worker received it
--   kinds              continue (next step, same claim), next, retry, await, children, done, fail, cancel
--   steps              the next step; null keeps the step
--   payloads           the new state, or the result of done; null keeps the state
--   delays             seconds until the row may run (next, retry), null for none; the timeout of await and children
--   errors             last_error (fail, retry, cancel)
--   parents            the parent of a row that ends; null for most
--   extras             null for most, else an object: queue, priority, partition_key, limits, left (the gates of the
--                      step that ran), awaits, seen, consumed, children, join (how many children must be done),
--                      on_failure, cancel_rest, spawn (instances to start without waiting for them), error_type and
--                      traceback (of an exception), with_state (to keep the state in the history). A list has at
--                      most 100,000 elements; a worker sends at most 40,000 signals (engine/claim_part_loader.py)
--   worker, entries    for the history: the worker, and per outcome its entry (append_to_history.sql); null keeps none
-- Returns one row: stale, ids whose claim was taken over; already_committed, ids that an earlier call has committed;
-- woken_queues, the queues in which rows became runnable; cascade_origins, parents whose other children
-- cancel_listed_descendants.sql must cancel; cancel_requested, ids with a pending cancel: flush accepts only an end from
-- them, and the worker must commit one (tests/interleavings: cancel_flush).
--
-- The fence is id + claims + seq and needs no status: every exit from executing that is not the worker's own outcome
-- increments claims, the worker's own increments seq. All effects of an outcome depend on the rows that the fenced
-- update returned.
-- A delay counts from the statement, here and in insert and insert_instances_of_outcomes: a transactional step, or the caller's
-- transaction, may have begun long before, and now() is its beginning.
-- Index: the primary key throughout. Nested loops are forced: a generic plan that misjudges the number of executing
-- rows turns a flush of 500 from 9 into 100 ms.
-- Locks: own rows and parents in id order before anything else, gates last (tests/interleavings: join_join,
-- park_deliver).
-- Long because: one update writes the outcomes of a batch, and all effects share the rows that it returns.
create or replace function @schema.flush(
  ids bigint[], claims bigint[], seqs bigint[], kinds text[], steps text[], payloads jsonb[], delays float8[],
  errors text[], parents bigint[], extras jsonb[], worker text default null, entries text[] default '{}'
)
returns table (
  stale bigint[], already_committed bigint[], woken_queues text[], cascade_origins bigint[], cancel_requested bigint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'  -- a row that a long transaction has locked must not delay its batch (unlocked_ids.sql)
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  call_size constant int := greatest(
    cardinality(ids), cardinality(claims), cardinality(seqs), cardinality(kinds), cardinality(steps), cardinality(payloads),
    cardinality(delays), cardinality(errors), cardinality(parents), cardinality(extras), cardinality(entries)
  );
  clock constant timestamptz := statement_timestamp();
  stamp constant text := (extract(epoch from clock) * 1000000)::bigint;
  worker_name constant text := translate(coalesce(worker, ''), chr(9) || chr(10), '  ');
  recorded bigint[];           -- rows of which record_transitions writes the outcome
  written bigint[];
  parked_places tid[];
  fanout_ids bigint[];         -- parents that begin to wait for children
  consuming_ids bigint[];
  deleted_signals bigint[];    -- consumed signals without a dedup key are deleted,
  emptied_signals bigint[];    -- those with one stay, without their payload
  ended_children bigint[];
  queues text[];
  spawn_queues text[];
  freed_gates text[];
  more text[];
  limited_ids bigint[];        -- rows whose next step has other limits,
  limit_specs jsonb[];         -- and those limits
  starts_instances constant boolean := 'children' = any (kinds)
    or exists (select from unnest(extras) as extra (value) where extra.value ? 'spawn');
begin
  if call_size > 100000 then
    perform @schema.require_max_elements(call_size, 100000);
  end if;
  if pg_column_size(extras) > 400000 then  -- else no list has 100,000 elements: each takes at least 4 bytes
    perform @schema.require_max_elements(
      max(greatest(
        jsonb_array_length(extra.value -> 'awaits'), jsonb_array_length(extra.value -> 'seen'),
        jsonb_array_length(extra.value -> 'consumed'), jsonb_array_length(extra.value -> 'left')
      )),
      100000
    )
    from unnest(extras) as extra (value);
  end if;
  if current_setting('transaction_isolation') <> 'read committed' then
    perform @schema.require_read_committed();
  end if;
  if starts_instances or exists (select from unnest(parents) as parent (id) where parent.id is not null) then
    perform from @schema.instances i where i.id = any (ids || parents) order by i.id for no key update;
  end if;

  -- Insert children while the parents' rows are locked but not yet changed: an insert waits for a change of the row
  -- that holds its key, not for a lock on it. With the change first, two parents that start each other's keys would
  -- deadlock (tests/interleavings: spawn_spawn_of_each_other).
  if starts_instances then
    spawn_queues := @schema.insert_instances_of_outcomes(ids, claims, seqs, kinds, extras);
  end if;

  with outcomes as (
    select
      given.*,
      case given.kind
        when 'continue' then 'executing' when 'next' then 'runnable' when 'retry' then 'runnable'
        when 'await' then 'awaiting_signal' when 'children' then 'awaiting_children'
        when 'done' then 'done' when 'fail' then 'failed' when 'cancel' then 'cancelled'
      end::@schema.durable_status as status,
      given.kind in ('done', 'fail', 'cancel') as is_end,
      given.kind = 'continue' as keeps_claim,
      given.kind in ('next', 'retry') as is_runnable,
      given.kind = 'retry' or (given.kind = 'await' and given.step is null) as keeps_visit,
      -- The step runs again with the same signals: by itself, or if an operator retries the instance.
      given.kind in ('retry', 'fail', 'cancel') as repeats_step
    from unnest(ids, claims, seqs, kinds, steps, payloads, delays, errors, extras, entries)
      as given (id, epoch, seq, kind, step, value, delay, error, extra, entry)
  ),
  updated as (
    update @schema.instances i set
      status = outcome.status,
      step = coalesce(outcome.step, i.step),
      state = case when outcome.is_end then i.state else coalesce(outcome.value, i.state) end,
      result = case when outcome.kind = 'done' then outcome.value else i.result end,
      attempt = case
        when outcome.kind = 'retry' then i.attempt + 1
        when outcome.is_end or outcome.keeps_visit then i.attempt
        else 0
      end,
      step_errors = case
        when outcome.kind = 'retry' and outcome.error is not null then least(i.step_errors, 2147483646) + 1
        when outcome.is_end or outcome.keeps_visit then i.step_errors
        else 0
      end,
      seq = i.seq + 1,
      -- An end stays in its visit: an instance that is retried resumes with its finished activities (retry.sql).
      visit = case when outcome.is_end or outcome.keeps_visit then i.visit else i.seq + 1 end,
      crashes = 0,
      claimed_ahead = false,
      postponements = 0,
      eligible_at = case
        when not outcome.is_runnable then i.eligible_at
        when outcome.delay > 0 then statement_timestamp() + make_interval(secs => outcome.delay)
        else now()
      end,
      await_deadline = case
        when outcome.kind in ('await', 'children') then statement_timestamp() + make_interval(secs => outcome.delay)
        when outcome.repeats_step then i.await_deadline
      end,
      awaits = case
        when outcome.kind = 'await' then array(select jsonb_array_elements_text(outcome.extra -> 'awaits'))
        when outcome.repeats_step then i.awaits
      end,
      timed_out_claim = case when outcome.repeats_step then i.timed_out_claim end,
      seen = case
        when outcome.kind = 'await' then array(select jsonb_array_elements_text(outcome.extra -> 'seen')::bigint)
      end,
      joined = i.joined and outcome.keeps_visit,
      round = case when outcome.kind = 'children' then i.round + 1 else i.round end,
      children_pending = case
        when outcome.kind <> 'children' then i.children_pending
        else (
          select count(*) from @schema.instances child where child.parent_id = i.id and child.parent_round = i.round + 1
        )
      end,
      children_needed = case when outcome.kind = 'children' then (outcome.extra ->> 'join')::int end,
      on_failure = case when outcome.kind = 'children' then outcome.extra ->> 'on_failure' end,
      cancel_rest = case when outcome.kind = 'children' then (outcome.extra ->> 'cancel_rest')::boolean end,
      queue = coalesce(outcome.extra ->> 'queue', i.queue),
      priority = coalesce((outcome.extra ->> 'priority')::smallint, i.priority),
      partition_key = case
        when outcome.extra ? 'partition_key' then outcome.extra ->> 'partition_key' else i.partition_key
      end,
      last_error = case
        when outcome.repeats_step then coalesce(outcome.error, i.last_error)
      end,
      error_type = case
        when not outcome.repeats_step then null
        when outcome.error is null then i.error_type
        else outcome.extra ->> 'error_type'
      end,
      last_traceback = case
        when not outcome.repeats_step then null
        when outcome.error is null then i.last_traceback
        else outcome.extra ->> 'traceback'
      end,
      locked_by = case when outcome.keeps_claim then i.locked_by end,
      lease_expires_at = case when outcome.keeps_claim then i.lease_expires_at end,
      finished_at = case when outcome.is_end then now() end,
      unique_scope = @schema.unique_scope_for_status(i.unique_scope, outcome.status),
      history = case
        when outcome.entry is null then i.history
        else @schema.append_to_history(
          i.history, outcome.entry, clock, stamp, worker_name, i.eligible_at, i.attempt, @schema.cause_of_claim(
            i.claims, i.seq, i.timed_out_claim, i.crashes, i.attempt, i.last_error, i.joined, i.awaits
          )
        )
      end,
      updated_at = now()
    from outcomes as outcome
    where i.id = outcome.id and i.claims = outcome.epoch and i.seq = outcome.seq
      and (i.cancel_reason is null or outcome.is_end)
    returning
      i.id, i.ctid as place, i.has_signals, i.parent_id, i.queue, i.partition_key, i.slot_key,
      outcome.kind, outcome.delay, outcome.extra, outcome.is_end, outcome.keeps_claim, outcome.is_runnable,
      outcome.entry is not null and (
        outcome.error is not null or outcome.extra ? 'with_state' or starts_with(i.history, '!')
      ) as is_recorded
  )
  select
    array_agg(updated.id),
    array_agg(updated.place) filter (where updated.kind = 'await' and updated.has_signals),
    array_agg(updated.id) filter (where updated.kind = 'children'),
    array_agg(updated.id) filter (where updated.extra ? 'consumed'),
    array_agg(updated.id) filter (where updated.is_end and updated.parent_id is not null),
    array_agg(distinct updated.queue) filter (where updated.is_runnable and coalesce(updated.delay, 0) = 0),
    array_agg(distinct @schema.gate_name('partition', updated.partition_key))
        filter (where not updated.keeps_claim and updated.partition_key is not null)
      || array_agg(distinct @schema.gate_name('slot', updated.slot_key))
        filter (where not updated.keeps_claim and updated.slot_key is not null),
    array_agg(updated.id) filter (where updated.extra ? 'limits'),
    array_agg(updated.extra -> 'limits') filter (where updated.extra ? 'limits'),
    array_agg(updated.id) filter (where updated.is_recorded)
  into
    written, parked_places, fanout_ids, consuming_ids, ended_children, queues, freed_gates, limited_ids, limit_specs,
    recorded
  from updated;

  if coalesce(cardinality(written), 0) < cardinality(ids) then
    -- A call that is repeated after a lost answer finds its own outcome: the same epoch, seq one higher.
    select
      array_agg(outcome.id) filter (where i.id is null),
      array_agg(outcome.id) filter (where i.seq = outcome.seq + 1),
      array_agg(outcome.id) filter (where i.seq = outcome.seq)
    into stale, already_committed, cancel_requested
    from unnest(ids, claims, seqs) as outcome (id, epoch, seq)
    left join @schema.instances i
      on i.id = outcome.id and i.claims = outcome.epoch and i.seq in (outcome.seq, outcome.seq + 1)
    where outcome.id <> all (coalesce(written, '{}'));
  end if;

  if recorded is not null then
    perform @schema.record_transitions(ids, errors, extras, worker, recorded);
  end if;

  if consuming_ids is not null then
    -- offset 0 forces one index lookup per signal. As a join, the planner reads the whole table while it is small, and
    -- compares it with each signal of the batch.
    select
      array_agg(signal.id) filter (where signal.dedup_key is null),
      array_agg(signal.id) filter (where signal.dedup_key is not null)
    into deleted_signals, emptied_signals
    from unnest(ids, extras) as outcome (id, extra)
    cross join lateral jsonb_array_elements_text(outcome.extra -> 'consumed') as consumed (id)
    cross join lateral (
      select s.id, s.target_id, s.dedup_key from @schema.signals s where s.id = consumed.id::bigint offset 0
    ) as signal
    where outcome.id = any (consuming_ids) and outcome.extra ? 'consumed' and signal.target_id = outcome.id;
    delete from @schema.signals s where s.id = any (deleted_signals);
    update @schema.signals s set consumed = true, payload = null where s.id = any (emptied_signals);
  end if;

  if parked_places is not null then
    more := @schema.wake_if_signal_came(parked_places);
    queues := coalesce(queues, '{}') || more;
  end if;

  if fanout_ids is not null then
    -- No child to wait for, or fewer than are needed: the parent runs on at once.
    with released as (
      update @schema.instances i set
        status = 'runnable',
        eligible_at = now(),
        await_deadline = null,
        children_pending = 0,
        joined = true,
        unique_scope = @schema.unique_scope_for_status(i.unique_scope, 'runnable')
      where i.id = any (fanout_ids) and i.children_pending < coalesce(i.children_needed, 1)
      returning i.queue
    )
    select array_agg(distinct released.queue) into more from released;
    queues := coalesce(queues, '{}') || more;
  end if;
  queues := queues || spawn_queues;

  if ended_children is not null then
    select released.woken_queues, released.cascade_origins into more, cascade_origins
    from @schema.count_ended_children_and_wake_parents(ended_children) as released;
    queues := coalesce(queues, '{}') || more;
  end if;

  if limited_ids is not null then
    update @schema.instances i set slot_key = limited.slot_key, rate_key = limited.rate_key, weight = limited.weight
    from @schema.keys_of_limits(limit_specs) as keys
    cross join lateral unnest(limited_ids, keys.slot_keys, keys.rate_keys, keys.weights)
      as limited (id, slot_key, rate_key, weight)
    where i.id = limited.id;
  end if;
  if cardinality(extras) > 0 then
    -- The gates of the step that ran; the update above has set those of the next.
    freed_gates := freed_gates || array(
      select distinct freed.gate from unnest(ids, extras) as outcome (id, extra)
      cross join lateral jsonb_array_elements_text(outcome.extra -> 'left') as freed (gate)
      where outcome.id = any (written)
    );
  end if;
  if cardinality(freed_gates) > 0 then
    more := @schema.unblock(freed_gates, true);
    queues := coalesce(queues, '{}') || more;
  end if;

  woken_queues := queues;
  return next;
end
$$;
