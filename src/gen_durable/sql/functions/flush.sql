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
--   origin            the step that ran, for the history (note_transitions.sql); null: none is kept. With it ago and
--                     duration; worker for all
-- Out: one row: ids that are stale (the claim was taken over), ids that a former call had already committed, the
-- queues in which rows became runnable now ('!ID': children of ID are to be cancelled), and ids that are to be cancelled:
-- only an end is taken from them, and the owner has to commit one (tests/interleavings: cancel_flush).
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
returns table (stale bigint[], already bigint[], wake text[], asked bigint[])
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
    perform from @schema.gen_durable g where g.id = any (ids || parents) order by g.id for no key update;
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
        when 'hold' then 'executing' when 'next' then 'runnable' when 'replay' then 'runnable'
        when 'await' then 'awaiting_signal' when 'children' then 'awaiting_children'
        when 'done' then 'done' when 'stop' then 'failed' when 'cancel' then 'cancelled'
      end::@schema.durable_status as status
    from unnest(ids, claims, seqs, kinds, steps, payloads, delays, errors, extras)
      as o (id, claim, seq, kind, step, value, delay, error, extra)
  ),
  u as (
    update @schema.gen_durable g set
      status = o.status,
      step = coalesce(o.step, g.step),
      state = case when o.kind in ('done', 'stop', 'cancel') then g.state else coalesce(o.value, g.state) end,
      result = case when o.kind = 'done' then o.value else g.result end,
      attempt = case
        when o.kind = 'replay' then g.attempt + 1
        when o.kind in ('done', 'stop', 'cancel') or (o.kind = 'await' and o.step is null) then g.attempt
        else 0
      end,
      seq = g.seq + 1,
      -- An end stays in its visit: who is tried again goes on with what is finished (retry.sql).
      visit = case
        when o.kind in ('replay', 'done', 'stop', 'cancel') or (o.kind = 'await' and o.step is null) then g.visit
        else g.seq + 1
      end,
      crashes = 0,
      eligible_at = case
        when o.kind not in ('next', 'replay') then g.eligible_at
        when o.delay > 0 then statement_timestamp() + make_interval(secs => o.delay)
        else now()
      end,
      await_deadline = case when o.kind in ('await', 'children') then statement_timestamp() + make_interval(secs => o.delay) end,
      awaits = case o.kind
        when 'await' then array(select jsonb_array_elements_text(o.extra -> 'awaits'))
        when 'replay' then g.awaits
      end,
      seen = case when o.kind = 'await' then array(select jsonb_array_elements_text(o.extra -> 'seen')::bigint) end,
      joined = g.joined and (o.kind = 'replay' or (o.kind = 'await' and o.step is null)),
      round = case when o.kind = 'children' then g.round + 1 else g.round end,
      children_pending = case
        when o.kind <> 'children' then g.children_pending
        else (select count(*) from @schema.gen_durable c where c.parent_id = g.id and c.parent_round = g.round + 1)
      end,
      children_needed = case when o.kind = 'children' then (o.extra ->> 'join')::int end,
      on_failure = case when o.kind = 'children' then o.extra ->> 'on_failure' end,
      cancel_rest = case when o.kind = 'children' then (o.extra ->> 'cancel_rest')::boolean end,
      queue = coalesce(o.extra ->> 'queue', g.queue),
      priority = coalesce((o.extra ->> 'priority')::smallint, g.priority),
      partition_key = case when o.extra ? 'partition_key' then o.extra ->> 'partition_key' else g.partition_key end,
      last_error = case when o.kind in ('replay', 'stop', 'cancel') then coalesce(o.error, g.last_error) end,
      locked_by = case when o.kind = 'hold' then g.locked_by end,
      lease_expires_at = case when o.kind = 'hold' then g.lease_expires_at end,
      finished_at = case when o.kind in ('done', 'stop', 'cancel') then now() end,
      unique_scope = case when o.status = any (g.unique_scope) then g.unique_scope else '{}' end,
      updated_at = now()
    from o
    where g.id = o.id and g.claims = o.claim and g.seq = o.seq
      and (g.cancel_reason is null or o.kind in ('done', 'stop', 'cancel'))
    returning g.id, g.ctid as place, g.inbox, g.parent_id, g.queue, g.partition_key, g.slot_key, o.kind, o.delay, o.extra
  )
  select
    array_agg(u.id),
    array_agg(u.place) filter (where u.kind = 'await' and u.inbox),
    array_agg(u.id) filter (where u.kind = 'children'),
    array_agg(u.id) filter (where u.extra ? 'consumed'),
    array_agg(u.id) filter (where u.kind in ('done', 'stop', 'cancel') and u.inbox),
    array_agg(u.id) filter (where u.kind in ('done', 'stop', 'cancel') and u.parent_id is not null),
    array_agg(distinct u.queue) filter (where u.kind in ('next', 'replay') and coalesce(u.delay, 0) = 0),
    array_agg(distinct 'partition/' || u.partition_key) filter (where u.kind <> 'hold' and u.partition_key is not null)
      || array_agg(distinct 'slot/' || u.slot_key) filter (where u.kind <> 'hold' and u.slot_key is not null),
    array_agg(u.id) filter (where u.extra ? 'limits'),
    array_agg(u.extra -> 'limits') filter (where u.extra ? 'limits')
  into written, parked, spawning, consuming, emptied, ended, queues, freed, limited, wants
  from u;

  if coalesce(cardinality(written), 0) < cardinality(ids) then
    -- A retry after a lost answer finds its own outcome: same claim, one outcome further.
    select
      array_agg(o.id) filter (where g.id is null),
      array_agg(o.id) filter (where g.seq = o.seq + 1),
      array_agg(o.id) filter (where g.seq = o.seq)
    into stale, already, asked
    from unnest(ids, claims, seqs) as o (id, claim, seq)
    left join @schema.gen_durable g on g.id = o.id and g.claims = o.claim and g.seq in (o.seq, o.seq + 1)
    where o.id <> all (coalesce(written, '{}'));
  end if;

  if cardinality(origins) > 0 and written is not null then
    perform @schema.note_transitions(
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
      update @schema.gen_durable g set
        status = 'runnable',
        eligible_at = now(),
        await_deadline = null,
        children_pending = 0,
        joined = true,
        unique_scope = case when 'runnable' = any (g.unique_scope) then g.unique_scope else '{}' end
      where g.id = any (spawning) and g.children_pending < coalesce(g.children_needed, 1)
      returning g.queue
    )
    select array_agg(distinct u.queue) into more from u;
    queues := coalesce(queues, '{}') || more;
  end if;
  queues := queues || made;

  if emptied is not null then
    delete from @schema.signals s where s.target_id = any (emptied);
  end if;

  if ended is not null then
    more := @schema.join_up(ended);
    queues := coalesce(queues, '{}') || more;
  end if;

  if limited is not null then
    update @schema.gen_durable g set slot_key = l.slot_key, rate_key = l.rate_key, weight = l.weight
    from @schema.limit_keys(wants) as k
    cross join lateral unnest(limited, k.slot_keys, k.rate_keys, k.weights) as l (id, slot_key, rate_key, weight)
    where g.id = l.id;
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
    more := @schema.hand_over(freed, true);
    queues := coalesce(queues, '{}') || more;
  end if;

  wake := queues;
  return next;
end
$$;
