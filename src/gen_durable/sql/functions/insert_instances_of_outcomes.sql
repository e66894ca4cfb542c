-- insert_instances_of_outcomes: insert the children of parents that this transaction has locked and is about to park, and the
-- instances that other outcomes start without waiting for them.
--
-- Parameters: the arrays of flush with the fence, the kind, and extras: `children`, an array of objects, or `spawn`,
-- the same. A child with an id keeps it: one of lock_parent_and_allocate_ids or of allocate_ids, which is used up here.
-- An id that another login has drawn raises GD008. Its signals are those of send_first_signals.sql. Its trace_context is
-- that of the instance that starts it.
-- Returns the queues in which rows became runnable.
-- The fence is checked here as in flush, and a row with a pending cancel starts no instances; the lock guarantees that
-- both checks agree. A child whose unique key is taken is neither inserted nor waited for. Rows are inserted in the
-- order of their keys (insert.sql).
-- Index: instances_unique, primary key. Locks: none beyond those of flush and of the keys.
-- Guarded by tests/interleavings/test_unique.py and test_cancel.py.
create or replace function @schema.insert_instances_of_outcomes(
  ids bigint[], claims bigint[], seqs bigint[], kinds text[], extras jsonb[]
)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set lock_timeout = '1s'  -- as in flush
set enable_seqscan = off
as $$
declare
  woken_queues text[];
  new_ids bigint[];         -- inserted rows that have first signals
  receivers bigint[];       -- these and those that were not inserted,
  first_signals jsonb[];    -- and their signals
  given_ids bigint[];       -- the ids that came with the children
begin
  perform @schema.require_max_elements(greatest(
    cardinality(ids), cardinality(insert_instances_of_outcomes.claims), cardinality(seqs), cardinality(kinds),
    cardinality(extras)
  ), 100000);
  perform @schema.require_max_elements(max(jsonb_array_length(listed.starts)), 100000)
  from unnest(extras) as outcome (extra)
  cross join lateral (values (outcome.extra -> 'children'), (outcome.extra -> 'spawn')) as listed (starts)
  where jsonb_typeof(listed.starts) = 'array';
  if exists (select from @schema.instances i where i.id > (select last_value from @schema.instances_id_seq)) then
    perform @schema.draw_unused_ids(1);  -- the sequence was set back: advance it
  end if;

  with source as (
    select outcome.id as starter, case outcome.kind when 'children' then outcome.id end as parent_id,
           case outcome.kind when 'children' then parent.round + 1 end as round, parent.trace_context, child.*
    from unnest(ids, insert_instances_of_outcomes.claims, seqs, kinds, extras) as outcome (id, epoch, seq, kind, extra)
    join @schema.instances parent
      on parent.id = outcome.id and parent.claims = outcome.epoch and parent.seq = outcome.seq
      and (parent.cancel_reason is null or outcome.kind = 'done')  -- as flush accepts an end
    cross join lateral rows from (
      jsonb_to_recordset(outcome.extra -> case outcome.kind when 'children' then 'children' else 'spawn' end) as (
        fsm text, version int, step text, state jsonb, queue text, priority smallint, partition_key text, delay float8,
        schedule_at timestamptz, unique_key text, unique_scope text, limits jsonb, group_key text, id bigint,
        metadata jsonb, keep float8, signals jsonb
      )
    ) with ordinality as child (
      fsm, version, step, state, queue, priority, partition_key, delay, schedule_at, unique_key, unique_scope, limits,
      group_key, id, metadata, keep, signals, ord
    )
    where outcome.kind = 'children' or outcome.extra ? 'spawn'
  ),
  limited as materialized (
    select wanted.limits, keys.slot_keys[1] as slot_key, keys.rate_keys[1] as rate_key, keys.weights[1] as weight
    from (select distinct start.limits from source as start where start.limits is not null) as wanted
    cross join lateral @schema.keys_of_limits(array[wanted.limits]) as keys
  ),
  -- Ids in the order in which the parent lists them, whatever the order of the keys.
  numbered as materialized (
    select start.*, coalesce(start.id, nextval('@schema.instances_id_seq'::regclass)) as child_id
    from (select * from source order by starter, ord) as start
  ),
  made as (
    insert into @schema.instances
      (id, fsm, fsm_version, step, state, queue, priority, partition_key, eligible_at, unique_key, unique_scope,
       slot_key, rate_key, weight, group_key, parent_id, parent_round, metadata, keep_seconds,
       has_signals, trace_context)
    overriding system value
    select start.child_id, start.fsm, start.version, start.step, coalesce(start.state, 'null'), start.queue,
           start.priority, start.partition_key,
           coalesce(
             start.schedule_at,
             case when start.delay > 0 then statement_timestamp() else now() end + make_interval(secs => start.delay)
           ),
           decode(start.unique_key, 'hex'), coalesce(start.unique_scope, '{}')::@schema.durable_status[],
           limited.slot_key, limited.rate_key, limited.weight, start.group_key, start.parent_id, start.round,
           start.metadata, start.keep, start.signals is not null, start.trace_context
    from numbered as start
    left join limited on limited.limits = start.limits
    order by decode(start.unique_key, 'hex'), start.child_id
    on conflict (unique_guard) where unique_guard is not null do nothing
    returning id, queue, has_signals
  )
  select started.queues, started.receivers, messages.receivers, messages.signals, messages.given_ids
  into woken_queues, new_ids, receivers, first_signals, given_ids
  from (
    select array_agg(distinct made.queue) as queues, array_agg(made.id) filter (where made.has_signals) as receivers
    from made
  ) as started
  cross join (
    select array_agg(start.child_id order by start.child_id) filter (where start.signals is not null) as receivers,
      array_agg(start.signals order by start.child_id) filter (where start.signals is not null) as signals,
      array_agg(start.id) filter (where start.id is not null) as given_ids
    from numbered as start
  ) as messages;
  if given_ids is not null then
    delete from @schema.allocated_ids allocated
    where allocated.id = any (given_ids)
      and allocated.login is not distinct from case when session_user <> current_user then @schema.session_login() end;
    if exists (select from @schema.allocated_ids allocated where allocated.id = any (given_ids)) then
      raise exception 'the id of a child was drawn by another login' using errcode = 'GD008';
    end if;
  end if;
  if new_ids is not null then
    perform @schema.send_first_signals(receivers, first_signals, new_ids);
  end if;
  return woken_queues;
end
$$;
