-- admit_limits: decide by limit which of the rows that pick has found may run, and block the others.
--
-- Parameters: due rows that this transaction has locked; the rows it has claimed already; the slot keys of those, once
-- per row; `many`: if so many rows of a gate are refused at once, up to 1,000 more of that gate are blocked too.
-- Returns the rows that may run, and their slot keys; how many were blocked, in all and by gate; how many wait for gates
-- that another session has locked, and were left as they are; queues in which other rows became due or got a token_at.
-- A slot is an executing row: there is no counter that could drift. The claim takes a token in its own transaction, so
-- none is granted twice or kept by a worker that does not run. Rows that are refused a token go to unblock, which gives
-- the first of them a token_at.
-- The crowd of a gate excludes rows with a partition key, of which only the head may go on to a limit, and rows whose
-- slot is not locked here: they are expected to take it, so blocking them would have to unblock the next of that slot.
-- A row whose weight exceeds a since-lowered burst takes the whole bucket.
-- Index: instances_slot, instances_slot_due, instances_rate_due; primary keys of limits and rate_buckets.
-- Locks: policies (shared) and gates, by try-lock, then the crowd with SKIP LOCKED. The lock on a gate keeps the counts
-- true until commit, the shared lock on the policy keeps the limit unchanged (tests/interleavings: grant_grant,
-- policy_pick).
create or replace function @schema.admit_limits(
  found_rows tid[], claimed_rows tid[], claimed_slots text[], many int,
  out allowed tid[], out slots text[], out denied int, out contended int, out woken text[], out blocked_counts jsonb
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  bulk constant int := 1000;
  tolerance constant float8 := 2e-6;  -- seconds: time has microseconds, and a row that comes on time is not early
  moment timestamptz;
  gates text[];              -- locked by this transaction
  is_locked jsonb;           -- {gate: true}
  claimed_per_slot jsonb;    -- {slot key: how many rows of it were claimed already}
  tokens_taken jsonb;        -- {rate key: how many}
  blocked tid[];
  crowded_gates text[];
  gates_with_room text[];    -- of slots that could admit more
begin
  select coalesce(array_agg(wanted.gate), '{}') into gates
  from (
    select distinct either.gate from @schema.instances i
    cross join lateral (
      values (@schema.gate('slot', i.slot_key)), (@schema.gate('rate', i.rate_key))
    ) as either (gate)
    where i.ctid = any (found_rows) and either.gate is not null
  ) as wanted
  where pg_try_advisory_xact_lock_shared(hashtext('@schema'), @schema.policy_lock_id(@schema.gate_key(wanted.gate)))
    and pg_try_advisory_xact_lock(@schema.gate_lock_id(wanted.gate));

  -- Objects instead of joins: a call may concern hundreds of gates, and nested loops would compare each with each.
  is_locked := (select jsonb_object_agg(g.gate, true) from unnest(gates) as g (gate));
  claimed_per_slot := (
    select jsonb_object_agg(c.key, c.total)
    from (select c.key, count(*) as total from unnest(claimed_slots) as c (key) group by c.key) as c
  );
  moment := clock_timestamp();
  with candidate as materialized (
    select i.ctid as place, i.id, i.priority, case when i.token_at is null then i.due_at else i.eligible_at end as since,
      i.slot_key, i.rate_key, coalesce(i.weight, 1) as weight,
      (i.slot_key is null or is_locked ? @schema.gate('slot', i.slot_key))
        and (i.rate_key is null or is_locked ? @schema.gate('rate', i.rate_key)) as has_locks
    from @schema.instances i where i.ctid = any (found_rows)
  ),
  free_slots as materialized (
    select jsonb_object_agg(
      needed.key, l.slots - @schema.slots_taken(needed.key, l.slots) - coalesce((claimed_per_slot ->> needed.key)::int, 0)
    ) as by_key
    from (
      select distinct c.slot_key as key from candidate c where c.has_locks and c.slot_key is not null
    ) as needed
    join @schema.limits l on l.name = split_part(needed.key, '/', 1) and l.kind = 'concurrency'
  ),
  with_slot as (
    select c.*, coalesce(
      row_number() over (partition by c.slot_key order by c.priority, c.since, c.id)
        <= (free_slots.by_key ->> c.slot_key)::int, true
    ) as gets_slot
    from candidate c cross join free_slots
    where c.has_locks
  ),
  buckets as materialized (
    select jsonb_object_agg(needed.key, jsonb_build_object(
      'tokens', l.burst - greatest(extract(epoch from b.drained_until - moment), 0)::float8 / l.period,
      'period', l.period, 'burst', l.burst
    )) as by_key
    from (
      select distinct c.rate_key as key from with_slot c where c.gets_slot and c.rate_key is not null
    ) as needed
    join @schema.limits l on l.name = split_part(needed.key, '/', 1) and l.kind = 'rate'
    left join @schema.rate_buckets b on b.key = needed.key
  ),
  with_bucket as (
    select c.*, (buckets.by_key -> c.rate_key ->> 'tokens')::float8 as tokens,
      (buckets.by_key -> c.rate_key ->> 'period')::float8 as period,
      least(c.weight, (buckets.by_key -> c.rate_key ->> 'burst')::int) as takes
    from with_slot c cross join buckets
  ),
  decision as materialized (
    select c.*, c.gets_slot and (
      c.tokens is null
      or sum(c.takes) over (partition by c.rate_key, c.gets_slot order by c.priority, c.since, c.id)
        <= c.tokens + tolerance / c.period
    ) as may_run
    from with_bucket c
  )
  select
    array_agg(d.place) filter (where d.may_run),
    array_agg(d.slot_key) filter (where d.may_run and d.slot_key is not null),
    array_agg(d.place) filter (where not d.may_run),
    (select jsonb_object_agg(taken.key, taken.total) from (
       select d.rate_key as key, sum(d.takes) as total
       from decision d where d.may_run and d.tokens is not null group by d.rate_key
     ) as taken),
    (select jsonb_object_agg(refused.gate, refused.total) from (
       select case
           when d.gets_slot then @schema.gate('rate', d.rate_key) else @schema.gate('slot', d.slot_key)
         end as gate, count(*) as total
       from decision d where not d.may_run group by 1
     ) as refused),
    (select count(*) from candidate c where not c.has_locks),
    (select array_agg(@schema.gate('slot', used.key)) from free_slots cross join (
       select d.slot_key as key, count(*) filter (where d.may_run) as total
       from decision d where d.slot_key is not null group by d.slot_key
     ) as used
     where coalesce((free_slots.by_key ->> used.key)::int > used.total, true))
  into allowed, slots, blocked, tokens_taken, blocked_counts, contended, gates_with_room
  from decision d;

  if tokens_taken is not null then
    insert into @schema.rate_buckets as b (key, drained_until)
    select taken.key, moment + make_interval(secs => taken.value::float8 * l.period)
    from jsonb_each_text(tokens_taken) as taken
    join @schema.limits l on l.name = split_part(taken.key, '/', 1)
    on conflict (key) do update set
      drained_until = greatest(b.drained_until, moment) + (excluded.drained_until - moment);
  end if;

  denied := 0;
  if blocked is not null then
    crowded_gates := array(
      select refused.key from jsonb_each_text(blocked_counts) as refused where refused.value::int >= many
    );
    if cardinality(crowded_gates) > 0 then
      blocked := blocked || array(
        select behind.place from unnest(crowded_gates) as crowd (gate)
        cross join lateral (
          select i.ctid as place from @schema.instances i
          where i.slot_key = @schema.gate_key(crowd.gate) and starts_with(crowd.gate, 'slot/')
            and i.partition_key is null
            and coalesce(i.due_at, 'infinity') <= now() and coalesce(i.due_at, 'infinity') < 'infinity'
            and i.ctid <> all (found_rows || claimed_rows)
          order by i.queue, coalesce(i.due_at, 'infinity') limit bulk for no key update skip locked
        ) as behind
      ) || array(
        select behind.place from unnest(crowded_gates) as crowd (gate)
        cross join lateral (
          select i.ctid as place from @schema.instances i
          where i.rate_key = @schema.gate_key(crowd.gate) and starts_with(crowd.gate, 'rate/') and i.token_at is null
            and coalesce(i.due_at, 'infinity') <= now() and coalesce(i.due_at, 'infinity') < 'infinity'
            and i.partition_key is null and i.ctid <> all (found_rows || claimed_rows)
            and (i.slot_key is null or @schema.gate('slot', i.slot_key) = any (gates))
          order by coalesce(i.due_at, 'infinity') limit bulk for no key update skip locked
        ) as behind
      );
    end if;
    with now_blocked as (
      update @schema.instances i set
        blocked_on = case
          when blocked_counts ? @schema.gate('slot', i.slot_key) then @schema.gate('slot', i.slot_key)
          else @schema.gate('rate', i.rate_key)
        end,
        eligible_at = case when i.token_at is null then i.due_at else i.eligible_at end,
        token_at = null
      where i.ctid = any (blocked)
      returning i.blocked_on as gate
    )
    select sum(counted.total), jsonb_object_agg(counted.gate, counted.total) into denied, blocked_counts
    from (select n.gate, count(*) as total from now_blocked n group by n.gate) as counted;
  end if;
  gates := array(select g.gate from unnest(gates) as g (gate) where not starts_with(g.gate, 'slot/')) || gates_with_room;
  if cardinality(gates) > 0 then
    woken := @schema.unblock(gates, false, false, claimed_rows || allowed);
  end if;
end
$$;
