-- admit_or_block_rows_by_limit: decide by limit which of the rows that pick has found may run, and block the others.
--
-- Parameters: due rows that this transaction has locked; the rows it has claimed already; the slot keys of those, once
-- per row; `many`: if so many rows of a gate are blocked at once, up to 1,000 more of that gate are blocked too.
-- Returns the rows that may run, and their slot keys; how many were blocked, and blocked_groups, the same by gate and
-- queue, as pick.sql reports it; how many wait for gates that another session has locked, and were left as they are;
-- queues in which other rows became due or got a token_at.
-- Slots: an executing row is a slot in use, so there is no counter that could drift.
-- Tokens: the claim takes them in its own transaction, so none is granted twice or kept by a worker that does not run.
-- A bucket is stored as drained_until, the time at which it is full again. At `moment` it lacks
-- (drained_until - moment) / period tokens, with `period` the seconds per token, so it holds `burst` minus that. The
-- rows of a rate, most urgent first, run while the running sum of their weights is within the tokens held. Times have
-- microseconds, so a row that is picked exactly at its token_at may find the bucket short by a rounding error: 2e-6 s,
-- which are 2e-6 / period tokens, are allowed for it. Taking tokens moves drained_until by period seconds for each.
-- A row whose weight exceeds a since-lowered burst takes the whole bucket. Rows that are refused a token go to unblock,
-- which gives the first of them a token_at.
-- Index: instances_slot; primary keys of limits and rate_buckets.
-- Locks: gates with SKIP LOCKED, then rows as lock_more_rows_to_block.sql. The lock on a gate keeps the counts true and
-- the policy unchanged until commit (reblock_rows_and_lock_limit_gates.sql).
-- Long because: one statement decides about slots and tokens together, and its parts share the candidates.
-- Guarded by tests/store/test_limits.py, tests/interleavings/test_limits.py (test_pick_pick_of_one_slot,
-- test_policy_pick_fewer_slots).
create or replace function @schema.admit_or_block_rows_by_limit(
  found_rows tid[], claimed_rows tid[], claimed_slots text[], many int,
  out allowed tid[], out slots text[], out denied int, out contended int, out woken_queues text[],
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
  rounding_seconds constant float8 := 2e-6;
  moment timestamptz;
  locked_gates text[];
  is_locked jsonb;           -- {gate: true}
  claimed_per_slot jsonb;    -- {slot key: how many rows of it were claimed already}
  tokens_taken jsonb;        -- {rate key: how many}
  blocked tid[];
  blocked_counts jsonb;      -- {gate: how many of the found rows it refuses}
  granted_counts jsonb;      -- {rate gate: how many of the found rows it admits}
  crowded_gates text[];
  crowd tid[];
  gates_to_unblock text[];
  gates_with_slots text[];   -- of concurrency limits that could admit more rows
begin
  select coalesce(array_agg(wanted.gate), '{}') into locked_gates
  from (
    select distinct either.gate from @schema.instances i
    cross join lateral (values (@schema.gate_name('slot', i.slot_key)), (@schema.gate_name('rate', i.rate_key))) as either (gate)
    where i.ctid = any (found_rows) and either.gate is not null
  ) as wanted
  cross join lateral (
    select from @schema.gate_locks lock where lock.id = @schema.gate_row_id(wanted.gate)
    for no key update skip locked
  ) as locked;

  -- Objects instead of joins: a call may concern hundreds of gates, and nested loops would compare all pairs.
  is_locked := (select coalesce(jsonb_object_agg(locked.gate, true), '{}') from unnest(locked_gates) as locked (gate));
  claimed_per_slot := (
    select jsonb_object_agg(counted.key, counted.total)
    from (
      select claimed.key, count(*) as total from unnest(claimed_slots) as claimed (key) group by claimed.key
    ) as counted
  );
  moment := clock_timestamp();
  with candidate as materialized (
    select i.ctid as tid, i.id, i.priority, case when i.token_at is null then i.due_at else i.eligible_at end as since,
      i.slot_key, i.rate_key, coalesce(i.weight, 1) as weight,
      (i.slot_key is null or is_locked ? @schema.gate_name('slot', i.slot_key))
        and (i.rate_key is null or is_locked ? @schema.gate_name('rate', i.rate_key)) as has_locks
    from @schema.instances i where i.ctid = any (found_rows)
  ),
  free_slots as materialized (
    select jsonb_object_agg(needed.key, policy.slots
      - @schema.count_taken_slots(needed.key, policy.slots)
      - coalesce((claimed_per_slot ->> needed.key)::int, 0)
    ) as by_key
    from (
      select distinct candidate.slot_key as key from candidate
      where candidate.has_locks and candidate.slot_key is not null
    ) as needed
    join @schema.limits policy on policy.name = split_part(needed.key, '/', 1) and policy.kind = 'concurrency'
  ),
  with_slot as (
    select candidate.*, coalesce(
      row_number() over (
        partition by candidate.slot_key order by candidate.priority, candidate.since, candidate.id
      ) <= (free_slots.by_key ->> candidate.slot_key)::int, true
    ) as gets_slot
    from candidate cross join free_slots
    where candidate.has_locks
  ),
  buckets as materialized (
    select jsonb_object_agg(needed.key, jsonb_build_object(
      'tokens', policy.burst - greatest(extract(epoch from bucket.drained_until - moment), 0)::float8 / policy.period,
      'period', policy.period, 'burst', policy.burst
    )) as by_key
    from (
      select distinct with_slot.rate_key as key from with_slot
      where with_slot.gets_slot and with_slot.rate_key is not null
    ) as needed
    join @schema.limits policy on policy.name = split_part(needed.key, '/', 1) and policy.kind = 'rate'
    left join @schema.rate_buckets bucket on bucket.key = needed.key
  ),
  with_bucket as (
    select with_slot.*, (buckets.by_key -> with_slot.rate_key ->> 'tokens')::float8 as tokens,
      (buckets.by_key -> with_slot.rate_key ->> 'period')::float8 as period,
      least(with_slot.weight, (buckets.by_key -> with_slot.rate_key ->> 'burst')::int) as takes
    from with_slot cross join buckets
  ),
  decision as materialized (
    select with_bucket.*, with_bucket.gets_slot and (
      with_bucket.tokens is null
      or sum(with_bucket.takes) over (
        partition by with_bucket.rate_key, with_bucket.gets_slot
        order by with_bucket.priority, with_bucket.since, with_bucket.id
      ) <= with_bucket.tokens + rounding_seconds / with_bucket.period
    ) as may_run
    from with_bucket
  )
  select
    array_agg(decision.tid) filter (where decision.may_run),
    array_agg(decision.slot_key) filter (where decision.may_run and decision.slot_key is not null),
    array_agg(decision.tid) filter (where not decision.may_run),
    (select jsonb_object_agg(taken.key, taken.total) from (
       select decision.rate_key as key, sum(decision.takes) as total
       from decision where decision.may_run and decision.tokens is not null group by decision.rate_key
     ) as taken),
    (select jsonb_object_agg(refused.gate, refused.total) from (
       select case
           when decision.gets_slot then @schema.gate_name('rate', decision.rate_key)
           else @schema.gate_name('slot', decision.slot_key)
         end as gate, count(*) as total
       from decision where not decision.may_run group by 1
     ) as refused),
    (select jsonb_object_agg(granted.gate, granted.total) from (
       select @schema.gate_name('rate', decision.rate_key) as gate, count(*) as total
       from decision where decision.may_run and decision.tokens is not null group by 1
     ) as granted),
    (select count(*) from candidate where not candidate.has_locks),
    (select array_agg(@schema.gate_name('slot', used.key)) from free_slots cross join (
       select decision.slot_key as key, count(*) filter (where decision.may_run) as total
       from decision where decision.slot_key is not null group by decision.slot_key
     ) as used
     where coalesce((free_slots.by_key ->> used.key)::int > used.total, true))
  into allowed, slots, blocked, tokens_taken, blocked_counts, granted_counts, contended, gates_with_slots
  from decision;

  if tokens_taken is not null then
    insert into @schema.rate_buckets as bucket (key, drained_until)
    select taken.key, moment + make_interval(secs => taken.value::float8 * policy.period)
    from jsonb_each_text(tokens_taken) as taken
    join @schema.limits policy on policy.name = split_part(taken.key, '/', 1)
    on conflict (key) do update set
      drained_until = greatest(bucket.drained_until, moment) + (excluded.drained_until - moment);
  end if;

  denied := 0;
  if blocked is not null then
    crowded_gates := array(
      select refused.key from jsonb_each_text(blocked_counts) as refused where refused.value::int >= many
    );
    if cardinality(crowded_gates) > 0 then
      crowd := @schema.lock_more_rows_to_block(crowded_gates, locked_gates, found_rows || claimed_rows);
      blocked := blocked || crowd;
    end if;
    with now_blocked as (
      update @schema.instances i set
        blocked_on = case
          when blocked_counts ? @schema.gate_name('slot', i.slot_key) then @schema.gate_name('slot', i.slot_key)
          else @schema.gate_name('rate', i.rate_key)
        end,
        eligible_at = case when i.token_at is null then i.due_at else i.eligible_at end,
        token_at = null
      where i.ctid = any (blocked)
      returning i.blocked_on as gate, i.queue, i.id, i.fsm
    )
    select sum(grouped.count), jsonb_agg(grouped) into denied, blocked_groups
    from (
      select now_blocked.gate, now_blocked.queue, count(*) as count,
        coalesce((granted_counts ->> now_blocked.gate)::int, 0) as granted,
        min(now_blocked.id) as id, (array_agg(now_blocked.fsm order by now_blocked.id))[1] as machine
      from now_blocked group by now_blocked.gate, now_blocked.queue
    ) as grouped;
  end if;
  gates_to_unblock := array(
    select locked.gate from unnest(locked_gates) as locked (gate) where not starts_with(locked.gate, 'slot/')
  ) || gates_with_slots;
  if cardinality(gates_to_unblock) > 0 then
    woken_queues := @schema.unblock(gates_to_unblock, false, false, claimed_rows || allowed);
  end if;
end
$$;
