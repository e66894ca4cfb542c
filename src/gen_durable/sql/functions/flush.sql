-- flush: commit a batch of outcomes.
--
-- In: one array per column, in the order of ids, which differ; a column that is null for all may be shorter. Per outcome:
--   id, claim, seq    the fence: the row as the worker was given it
--   kind              hold (next step, same claim), next, replay, await, children, done, stop, cancel
--   step              the step to go on with; null: the same
--   value             the new state, or the result of done; null: the state stays
--   delay             seconds until runnable (next, replay; null: at once); the timeout of await or children, null for none
--   error             last_error (stop, replay, cancel)
--   parent            the instance to be told of an end; null for most
--   extra             null for most: {queue, priority, partition_key, limits, left (the gates it leaves), awaits, seen,
--                     consumed, children, join (how many must be done), on_failure, cancel_rest, spawn (instances to be
--                     started that nobody waits for)}
--   origin            the step that ran, for the history (record_transitions.sql); null: none is kept. With it ago and
--                     duration; worker for all
-- Out: one row: ids that are stale (the claim was taken over), ids that a former call had already committed, the
-- queues in which rows became runnable now, the parents whose other children are to be cancelled, and ids for which a cancel
-- was requested: only an end is taken from them, and the owner has to commit one (tests/interleavings: cancel_flush).
--
-- The fence is id + claims + seq and needs no status: every way out of executing that is not the owner's own outcome
-- bumps claims, the owner's own bumps seq. All that an outcome causes hangs on the rows the guarded update returned.
-- A delay counts from the statement that brings it, here and in insert and spawn: a transactional step, or a caller's own
-- transaction, may have begun long before, and now() is that.
-- Index: the primary key throughout; nested loops are forced, for a generic plan that guesses the number of executing
-- rows wrong turns a flush of 500 from 9 into 100 ms.
-- Locks: own rows and parents in id order before anything else (tests/interleavings: join_join, park_deliver).
create or replace function @schema.flush(
  ids bigint[], claims int[], seqs int[], kinds text[], steps text[], payloads jsonb[], delays float8[], errors text[],
  parents bigint[], extras jsonb[], worker text default null, origins text[] default '{}', agos float8[] default '{}',
  durations float8[] default '{}'
)
returns table (
  stale bigint[], already bigint[], woken text[], cancel_children bigint[], cancel_requested bigint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set lock_timeout = '1s'  -- a row held by a long transaction must not hold up its batch mates: see unlocked.sql
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  written bigint[];
  parked tid[];
  spawning bigint[];
  consuming bigint[];
  dropped bigint[];  -- signals consumed: without a dedup key they go,
  kept bigint[];     -- with one they stay, emptied
  emptied bigint[];
  ended bigint[];
  queues text[];
  made text[];
  freed text[];
  more text[];
  limited bigint[];  -- rows that go from or to a step with limits,
  wants jsonb[];     -- and those limits
  starts constant boolean := 'children' = any (kinds) or exists (select from unnest(extras) as e (x) where e.x ? 'spawn');
begin
  if starts or exists (select from unnest(parents) as p (id) where p.id is not null) then
    perform from @schema.instances i where i.id = any (ids || parents) order by i.id for no key update;
  end if;

  -- Children go in while the parents' rows are locked but not yet changed: an insert waits for a change of the row that
  -- holds its key, not for a lock on it. Changed first, two parents that start each other's keys would deadlock
  -- (tests/interleavings: spawn_spawn_of_each_other).
  if starts then
    made := @schema.spawn(ids, claims, seqs, kinds, extras);
  end if;

  with o as (
    select
      o.*,
      case o.kind
        when 'continue' then 'executing' when 'next' then 'runnable' when 'retry' then 'runnable'
        when 'await' then 'awaiting_signal' when 'children' then 'awaiting_children'
        when 'done' then 'done' when 'fail' then 'failed' when 'cancel' then 'cancelled'
      end::@schema.durable_status as status
    from unnest(ids, claims, seqs, kinds, steps, payloads, delays, errors, extras)
      as o (id, claim, seq, kind, step, value, delay, error, extra)
  ),
  u as (
    update @schema.instances i set
      status = o.status,
      step = coalesce(o.step, i.step),
      state = case when o.kind in ('done', 'fail', 'cancel') then i.state else coalesce(o.value, i.state) end,
      result = case when o.kind = 'done' then o.value else i.result end,
      attempt = case
        when o.kind = 'retry' then i.attempt + 1
        when o.kind in ('done', 'fail', 'cancel') or (o.kind = 'await' and o.step is null) then i.attempt
        else 0
      end,
      seq = i.seq + 1,
      -- An end stays in its visit: who is tried again goes on with what is finished (retry.sql).
      visit = case
        when o.kind in ('retry', 'done', 'fail', 'cancel') or (o.kind = 'await' and o.step is null) then i.visit
        else i.seq + 1
      end,
      crashes = 0,
      eligible_at = case
        when o.kind not in ('next', 'retry') then i.eligible_at
        when o.delay > 0 then statement_timestamp() + make_interval(secs => o.delay)
        else now()
      end,
      await_deadline = case when o.kind in ('await', 'children') then statement_timestamp() + make_interval(secs => o.delay) end,
      awaits = case o.kind
        when 'await' then array(select jsonb_array_elements_text(o.extra -> 'awaits'))
        when 'retry' then i.awaits
      end,
      seen = case when o.kind = 'await' then array(select jsonb_array_elements_text(o.extra -> 'seen')::bigint) end,
      joined = i.joined and (o.kind = 'retry' or (o.kind = 'await' and o.step is null)),
      round = case when o.kind = 'children' then i.round + 1 else i.round end,
      children_pending = case
        when o.kind <> 'children' then i.children_pending
        else (select count(*) from @schema.instances c where c.parent_id = i.id and c.parent_round = i.round + 1)
      end,
      children_needed = case when o.kind = 'children' then (o.extra ->> 'join')::int end,
      on_failure = case when o.kind = 'children' then o.extra ->> 'on_failure' end,
      cancel_rest = case when o.kind = 'children' then (o.extra ->> 'cancel_rest')::boolean end,
      queue = coalesce(o.extra ->> 'queue', i.queue),
      priority = coalesce((o.extra ->> 'priority')::smallint, i.priority),
      partition_key = case when o.extra ? 'partition_key' then o.extra ->> 'partition_key' else i.partition_key end,
      last_error = case when o.kind in ('retry', 'fail', 'cancel') then coalesce(o.error, i.last_error) end,
      locked_by = case when o.kind = 'continue' then i.locked_by end,
      lease_expires_at = case when o.kind = 'continue' then i.lease_expires_at end,
      finished_at = case when o.kind in ('done', 'fail', 'cancel') then now() end,
      unique_scope = @schema.scope_after(i.unique_scope, o.status),
      updated_at = now()
    from o
    where i.id = o.id and i.claims = o.claim and i.seq = o.seq
      and (i.cancel_reason is null or o.kind in ('done', 'fail', 'cancel'))
    returning i.id, i.ctid as place, i.has_signals, i.parent_id, i.queue, i.partition_key, i.slot_key, o.kind, o.delay, o.extra
  )
  select
    array_agg(u.id),
    array_agg(u.place) filter (where u.kind = 'await' and u.has_signals),
    array_agg(u.id) filter (where u.kind = 'children'),
    array_agg(u.id) filter (where u.extra ? 'consumed'),
    array_agg(u.id) filter (where u.kind in ('done', 'fail', 'cancel') and u.has_signals),
    array_agg(u.id) filter (where u.kind in ('done', 'fail', 'cancel') and u.parent_id is not null),
    array_agg(distinct u.queue) filter (where u.kind in ('next', 'retry') and coalesce(u.delay, 0) = 0),
    array_agg(distinct @schema.gate('partition', u.partition_key)) filter (where u.kind <> 'continue' and u.partition_key is not null)
      || array_agg(distinct @schema.gate('slot', u.slot_key)) filter (where u.kind <> 'continue' and u.slot_key is not null),
    array_agg(u.id) filter (where u.extra ? 'limits'),
    array_agg(u.extra -> 'limits') filter (where u.extra ? 'limits')
  into written, parked, spawning, consuming, emptied, ended, queues, freed, limited, wants
  from u;

  if coalesce(cardinality(written), 0) < cardinality(ids) then
    -- A retry after a lost answer finds its own outcome: same claim, one outcome further.
    select
      array_agg(o.id) filter (where i.id is null),
      array_agg(o.id) filter (where i.seq = o.seq + 1),
      array_agg(o.id) filter (where i.seq = o.seq)
    into stale, already, cancel_requested
    from unnest(ids, claims, seqs) as o (id, claim, seq)
    left join @schema.instances i on i.id = o.id and i.claims = o.claim and i.seq in (o.seq, o.seq + 1)
    where o.id <> all (coalesce(written, '{}'));
  end if;

  if cardinality(origins) > 0 and written is not null then
    perform @schema.record_transitions(
      ids, seqs, kinds, steps, errors, extras, worker, origins, agos, durations,
      case when cardinality(written) < cardinality(ids) then written end
    );
  end if;

  if consuming is not null then
    -- offset 0 keeps it at one look by key per signal. As a join, the whole table is read while it is small enough to
    -- seem cheaper than that, and compared with each signal of the batch.
    select array_agg(s.id) filter (where s.dedup_key is null), array_agg(s.id) filter (where s.dedup_key is not null)
    into dropped, kept
    from unnest(ids, extras) as o (id, extra)
    cross join lateral jsonb_array_elements_text(o.extra -> 'consumed') as c (id)
    cross join lateral (
      select s.id, s.target_id, s.dedup_key from @schema.signals s where s.id = c.id::bigint offset 0
    ) as s
    where o.id = any (consuming) and o.extra ? 'consumed' and s.target_id = o.id;
    delete from @schema.signals s where s.id = any (dropped);
    update @schema.signals s set consumed = true, payload = null where s.id = any (kept);
  end if;

  if parked is not null then
    more := @schema.recheck_inbox(parked);
    queues := coalesce(queues, '{}') || more;
  end if;

  if spawning is not null then
    -- Nothing to wait for, or too few were started: go straight on.
    with u as (
      update @schema.instances i set
        status = 'runnable',
        eligible_at = now(),
        await_deadline = null,
        children_pending = 0,
        joined = true,
        unique_scope = @schema.scope_after(i.unique_scope, 'runnable')
      where i.id = any (spawning) and i.children_pending < coalesce(i.children_needed, 1)
      returning i.queue
    )
    select array_agg(distinct u.queue) into more from u;
    queues := coalesce(queues, '{}') || more;
  end if;
  queues := queues || made;

  if emptied is not null then
    delete from @schema.signals s where s.target_id = any (emptied);
  end if;

  if ended is not null then
    select p.woken, p.cancel_children into more, cancel_children from @schema.release_parents(ended) as p;
    queues := coalesce(queues, '{}') || more;
  end if;

  if limited is not null then
    update @schema.instances i set slot_key = l.slot_key, rate_key = l.rate_key, weight = l.weight
    from @schema.limit_keys(wants) as k
    cross join lateral unnest(limited, k.slot_keys, k.rate_keys, k.weights) as l (id, slot_key, rate_key, weight)
    where i.id = l.id;
  end if;
  if cardinality(extras) > 0 then
    -- What they had before, not what they have now.
    freed := freed || array(
      select distinct l.gate from unnest(ids, extras) as o (id, extra)
      cross join lateral jsonb_array_elements_text(o.extra -> 'left') as l (gate)
      where o.id = any (written)
    );
  end if;
  if freed is not null then
    more := @schema.unblock(freed, true);
    queues := coalesce(queues, '{}') || more;
  end if;

  woken := queues;
  return next;
end
$$;
