-- admit_or_block_rows_by_partition: decide by partition key which of the rows that pick has found may run, and block the
-- others.
--
-- Parameters: due rows that this transaction has locked; the keys it has admitted already, and the ids of their rows;
-- `many`: if so many rows of a key are blocked at once, up to 1,000 more of that key are blocked too.
-- Returns the rows that may run, and their keys and ids, where they have a key; how many were blocked, and
-- blocked_groups, the same by gate and queue, as pick.sql reports it; how many belong to keys that another session has
-- locked, and were left as they are; queues in which another row became due instead.
-- A key runs one row at a time, in the order of (priority, due_at, id) over all queues. A row that must wait leaves the
-- pick index (blocked_on), so later picks do not read it, until unblock returns it. A row that its key has admitted and
-- that now waits for a limit is the head of the key until it has run.
-- A due row with a slot is expected to take it, and keeps other rows of that slot blocked. If this function blocks such
-- a row it unblocks the next of the slot, under the lock of the slot's gate; if that lock is taken, the row stays due.
-- Index: instances_partition (executing rows), instances_partition_order, instances_blocked and
-- instances_partition_admitted (heads).
-- Locks: the gates of the keys, then those of the slots, with SKIP LOCKED. The lock on a key keeps "no row executes, and
-- this row is the head" true until commit. The statements after it have a later snapshot, so they see what the previous
-- holder of the lock has written.
-- Guarded by tests/interleavings/test_claim_claim.py, tests/store/test_partition.py, test_gates.py.
create or replace function @schema.admit_or_block_rows_by_partition(
  found_rows tid[], claimed_keys text[], claimed_ids bigint[], many int,
  out allowed tid[], out keys text[], out ids bigint[], out denied int, out contended int, out woken_queues text[],
  out blocked_groups jsonb
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  bulk constant int := 1000;
  locked_keys text[];
  blocked tid[];
  decided_keys text[];         -- the locked keys again, in parallel with
  decided_heads bigint[];      -- the row that runs next, or was claimed already; null if another session runs one
  crowded_keys text[];
  crowded_heads bigint[];      -- these stay
  heads_to_unblock bigint[];
  slot_gates text[];           -- gates of slots that blocked rows do not take now
begin
  select array_agg(wanted.key) into locked_keys
  from (
    select distinct i.partition_key as key from @schema.instances i
    where i.ctid = any (found_rows) and i.partition_key is not null
  ) as wanted
  cross join lateral (
    select from @schema.gate_locks lock where lock.id = @schema.gate_row_id(@schema.gate_name('partition', wanted.key))
    for no key update skip locked
  ) as locked;

  with candidate as materialized (
    select i.ctid as tid, i.id, i.partition_key as key from @schema.instances i where i.ctid = any (found_rows)
  ),
  key_state as materialized (
    select locked.key, coalesce(admitted.id, head.id) as head, admitted.id is null and head.is_blocked as is_blocked,
      locked.key = any (claimed_keys) as is_claimed, locked.key = any (claimed_keys) or exists (
        select from @schema.instances i where i.status = 'executing' and i.partition_key = locked.key
      ) as is_busy
    from unnest(locked_keys) as locked (key)
    left join lateral (
      select i.id from @schema.instances i
      where i.partition_key = locked.key and (i.token_at is not null or not starts_with(i.blocked_on, 'partition/'))
      limit 1
    ) as admitted on true
    cross join lateral (
      select * from (
        (select i.priority, i.due_at as at, i.id, false as is_blocked from @schema.instances i
         where i.partition_key = locked.key and i.due_at <= now() order by i.priority, i.due_at, i.id limit 1)
        union all
        (select i.priority, i.eligible_at, i.id, true from @schema.instances i
         where i.blocked_on = @schema.gate_name('partition', locked.key)
         order by i.priority, i.eligible_at, i.id limit 1)
      ) as either
      order by either.priority, either.at, either.id limit 1
    ) as head
  ),
  decision as (
    select candidate.tid, candidate.id, candidate.key, key_state.key is not null as is_locked,
      candidate.key is null or (not key_state.is_busy and candidate.id = key_state.head) as may_run
    from candidate left join key_state on key_state.key = candidate.key
  )
  select
    array_agg(decision.tid) filter (where decision.may_run),
    array_agg(decision.key) filter (where decision.may_run and decision.key is not null),
    array_agg(decision.id) filter (where decision.may_run and decision.key is not null),
    array_agg(decision.tid) filter (where decision.is_locked and not decision.may_run),
    count(*) filter (where not decision.is_locked and decision.key is not null),
    (select array_agg(key_state.head) from key_state where key_state.is_blocked and not key_state.is_busy),
    (select array_agg(key_state.key order by key_state.key) from key_state),
    (select array_agg(case
       when key_state.is_claimed then claimed_ids[array_position(claimed_keys, key_state.key)]
       when not key_state.is_busy then key_state.head
     end order by key_state.key) from key_state)
  into allowed, keys, ids, blocked, contended, heads_to_unblock, decided_keys, decided_heads
  from decision;

  if exists (select from @schema.instances i where i.ctid = any (blocked) and i.slot_key is not null) then
    slot_gates := array(
      select wanted.gate
      from (
        select distinct @schema.gate_name('slot', i.slot_key) as gate from @schema.instances i
        where i.ctid = any (blocked) and i.slot_key is not null
      ) as wanted
      cross join lateral (
        select from @schema.gate_locks lock where lock.id = @schema.gate_row_id(wanted.gate)
        for no key update skip locked
      ) as locked
    );
    contended := contended + cardinality(blocked);
    blocked := array(
      select i.ctid from @schema.instances i
      where i.ctid = any (blocked) and (i.slot_key is null or @schema.gate_name('slot', i.slot_key) = any (slot_gates))
    );
    contended := contended - cardinality(blocked);
  end if;

  select array_agg(crowd.key), array_agg(decided.head) into crowded_keys, crowded_heads
  from (
    select i.partition_key as key from @schema.instances i where i.ctid = any (blocked)
    group by i.partition_key having count(*) >= many
  ) as crowd
  join unnest(decided_keys, decided_heads) as decided (key, head) on decided.key = crowd.key;

  if crowded_keys is not null then
    blocked := blocked || array(
      select behind.tid
      from unnest(crowded_keys, crowded_heads) as crowd (key, head)
      cross join lateral (
        select i.ctid as tid from @schema.instances i
        where i.partition_key = crowd.key and i.due_at <= now() and i.id <> coalesce(crowd.head, 0)
          and (i.slot_key is null or @schema.gate_name('slot', i.slot_key) = any (slot_gates))
        order by i.priority, i.due_at, i.id
        limit bulk
        for no key update skip locked
      ) as behind
    );
  end if;
  denied := 0;
  if blocked is not null then
    with now_blocked as (
      update @schema.instances i set
        blocked_on = @schema.gate_name('partition', i.partition_key),
        eligible_at = case when i.token_at is null then i.due_at else i.eligible_at end,
        token_at = null
      where i.ctid = any (blocked)
      returning i.blocked_on as gate, i.queue, i.id, i.fsm
    )
    select coalesce(sum(grouped.count), 0), jsonb_agg(grouped) into denied, blocked_groups
    from (
      select now_blocked.gate, now_blocked.queue, count(*) as count, min(now_blocked.id) as id,
        (array_agg(now_blocked.fsm order by now_blocked.id))[1] as machine
      from now_blocked group by now_blocked.gate, now_blocked.queue
    ) as grouped;
  end if;
  if heads_to_unblock is not null then
    with unblocked as (
      update @schema.instances i set blocked_on = null
      where i.ctid = any (array(
        select i.ctid from @schema.instances i where i.id = any (heads_to_unblock) for no key update skip locked
      ))
      returning i.queue
    )
    select array_agg(distinct unblocked.queue) into woken_queues from unblocked;
  end if;
  if cardinality(slot_gates) > 0 then
    woken_queues := woken_queues || @schema.unblock(slot_gates, false);
  end if;
end
$$;
