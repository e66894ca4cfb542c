-- admit_limits: which of the rows that a pick has found may run, by their limits. The others are blocked.
--
-- In: places of due rows that this transaction has locked; places of those that it has let run already, and their slot
-- keys, once for each row.
-- Out: the places of those that may run, and their slot keys; how many were blocked, in all and by gate; how many are of
-- gates that another session is dealing with just now, and were left as they are; the queues in which other rows became
-- due or were told when they will be.
-- A slot is an executing row: nothing is counted that could drift. A token is taken by the claim, in the same transaction,
-- so that nothing is granted twice or kept by somebody who does not run. Whoever is refused a token goes to unblock,
-- which tells the first of them when theirs will be there.
-- The lock on a gate makes what is asked here true until commit; what is asked after it sees whoever held it before. The
-- shared lock on the policy makes that hold for the policy too (tests/interleavings: grant_grant, policy_pick).
-- A gate of which `many` are refused at once has more of them behind: they are blocked too, a thousand at a time. Not those
-- with a partition key: only its head may go on to a limit; nor those whose slot is not dealt with here: they are expected
-- to take it, and it would have to be handed over.
-- Who waits for more tokens than its limit can hold, since that was made smaller, takes all there are.
-- Index: instances_slot, instances_slot_due, instances_rate_due; primary keys of limits and buckets.
create or replace function @schema.admit_limits(
  hits tid[], claimed tid[], taken text[], many int,
  out allowed tid[], out slots text[], out denied int, out contended int, out woken text[], out tally jsonb
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
  gates text[];
  moment timestamptz;
  blocked tid[];
  crowded text[];
  tokens jsonb;  -- rate key: how many were taken
  held jsonb;    -- gate: true
  took jsonb;    -- slot key: how many were let run already
  roomy text[];  -- gates of slots that could let more run
begin
  select coalesce(array_agg(k.gate), '{}') into gates
  from (
    select distinct v.gate from @schema.instances i
    cross join lateral (values ('slot/' || i.slot_key), ('rate/' || i.rate_key)) as v (gate)
    where i.ctid = any (hits) and v.gate is not null
  ) as k
  where pg_try_advisory_xact_lock_shared(hashtext('@schema'), @schema.policy_lock_id(substr(k.gate, 6)))
    and pg_try_advisory_xact_lock(@schema.gate_lock_id(k.gate));

  -- By key, as objects: hundreds of gates in one call are not compared each with each.
  held := (select jsonb_object_agg(k.gate, true) from unnest(gates) as k (gate));
  took := (select jsonb_object_agg(t.key, t.n) from (
    select t.key, count(*) as n from unnest(taken) as t (key) group by t.key
  ) as t);
  moment := clock_timestamp();
  with c as materialized (
    select i.ctid as place, i.id, i.priority, case when i.token_at is null then i.due_at else i.eligible_at end as since,
      i.slot_key, i.rate_key, coalesce(i.weight, 1) as weight,
      (i.slot_key is null or held ? ('slot/' || i.slot_key)) and (i.rate_key is null or held ? ('rate/' || i.rate_key))
        as locked
    from @schema.instances i where i.ctid = any (hits)
  ),
  free as materialized (
    select jsonb_object_agg(
      k.key, l.slots - @schema.slots_taken(k.key, l.slots) - coalesce((took ->> k.key)::int, 0)
    ) as slots
    from (select distinct c.slot_key as key from c where c.locked and c.slot_key is not null) as k
    join @schema.limits l on l.name = split_part(k.key, '/', 1) and l.kind = 'concurrency'
  ),
  slotted as (
    select c.*, coalesce(
      row_number() over (partition by c.slot_key order by c.priority, c.since, c.id) <= (f.slots ->> c.slot_key)::int, true
    ) as slotted
    from c cross join free f
    where c.locked
  ),
  buckets as materialized (
    select jsonb_object_agg(k.key, jsonb_build_array(
      l.burst - greatest(extract(epoch from b.drained_until - moment), 0)::float8 / l.period, l.period, l.burst
    )) as tokens
    from (select distinct s.rate_key as key from slotted s where s.slotted and s.rate_key is not null) as k
    join @schema.limits l on l.name = split_part(k.key, '/', 1) and l.kind = 'rate'
    left join @schema.rate_buckets b on b.key = k.key
  ),
  metered as (
    select s.*, (b.tokens -> s.rate_key ->> 0)::float8 as tokens, (b.tokens -> s.rate_key ->> 1)::float8 as period,
      least(s.weight, (b.tokens -> s.rate_key ->> 2)::int) as takes
    from slotted s cross join buckets b
  ),
  j as materialized (
    select m.*, m.slotted and (
      m.tokens is null
      -- Time is counted in microseconds: one that comes at its very moment is not early.
      or sum(m.takes) over (partition by m.rate_key, m.slotted order by m.priority, m.since, m.id)
        <= m.tokens + 2e-6 / m.period
    ) as may
    from metered m
  )
  select
    array_agg(j.place) filter (where j.may),
    array_agg(j.slot_key) filter (where j.may and j.slot_key is not null),
    array_agg(j.place) filter (where not j.may),
    (select jsonb_object_agg(t.key, t.weight) from (
       select j.rate_key as key, sum(j.takes) as weight
       from j where j.may and j.tokens is not null group by j.rate_key
     ) as t),
    (select jsonb_object_agg(t.gate, t.n) from (
       select case when j.slotted then 'rate/' || j.rate_key else 'slot/' || j.slot_key end as gate, count(*) as n
       from j where not j.may group by 1
     ) as t),
    (select count(*) from c where not c.locked),
    (select array_agg('slot/' || k.key) from free f cross join (
       select j.slot_key as key, count(*) filter (where j.may) as n from j where j.slot_key is not null group by j.slot_key
     ) as k
     where coalesce((f.slots ->> k.key)::int > k.n, true))
  into allowed, slots, blocked, tokens, tally, contended, roomy
  from j;

  if tokens is not null then
    insert into @schema.rate_buckets as b (key, drained_until)
    select t.key, moment + make_interval(secs => t.weight::float8 * l.period)
    from jsonb_each_text(tokens) as t (key, weight)
    join @schema.limits l on l.name = split_part(t.key, '/', 1)
    on conflict (key) do update set
      drained_until = greatest(b.drained_until, moment) + (excluded.drained_until - moment);
  end if;

  denied := 0;
  if blocked is not null then
    crowded := array(select t.gate from jsonb_each_text(tally) as t (gate, n) where t.n::int >= many);
    if cardinality(crowded) > 0 then
      blocked := blocked || array(
        select s.place from unnest(crowded) as k (gate)
        cross join lateral (
          select i.ctid as place from @schema.instances i
          where i.slot_key = substr(k.gate, 6) and starts_with(k.gate, 'slot/') and i.partition_key is null
            and coalesce(i.due_at, 'infinity') <= now() and coalesce(i.due_at, 'infinity') < 'infinity'
            and i.ctid <> all (hits || claimed)
          order by i.queue, coalesce(i.due_at, 'infinity') limit bulk for no key update skip locked
        ) as s
      ) || array(
        select s.place from unnest(crowded) as k (gate)
        cross join lateral (
          select i.ctid as place from @schema.instances i
          where i.rate_key = substr(k.gate, 6) and starts_with(k.gate, 'rate/') and i.token_at is null
            and coalesce(i.due_at, 'infinity') <= now() and coalesce(i.due_at, 'infinity') < 'infinity'
            and i.partition_key is null and i.ctid <> all (hits || claimed)
            and (i.slot_key is null or 'slot/' || i.slot_key = any (gates))
          order by coalesce(i.due_at, 'infinity') limit bulk for no key update skip locked
        ) as s
      );
    end if;
    with u as (
      update @schema.instances i set
        blocked_on = case when tally ? ('slot/' || i.slot_key) then 'slot/' || i.slot_key else 'rate/' || i.rate_key end,
        eligible_at = case when i.token_at is null then i.due_at else i.eligible_at end,
        token_at = null
      where i.ctid = any (blocked)
      returning i.blocked_on as gate
    )
    select sum(t.n), jsonb_object_agg(t.gate, t.n) into denied, tally
    from (select u.gate, count(*) as n from u group by u.gate) as t;
  end if;
  gates := array(select k.gate from unnest(gates) as k (gate) where not starts_with(k.gate, 'slot/')) || roomy;
  if cardinality(gates) > 0 then
    woken := @schema.unblock(gates, false, false, claimed || allowed);
  end if;
end
$$;
