-- admit_partitions: which of the rows that a pick has found may run, by their partition keys. The others are blocked.
--
-- In: places of due rows that this transaction has locked; the keys that it has let run already, and the ids of the rows.
-- Out: the places of those that may run, and their keys and ids, where they have a key; how many were blocked; how many
-- are of keys that another session is dealing with just now, and were left as they are; the queues in which another row
-- became due instead.
-- A key of which `many` are blocked at once has more of them behind: they are blocked too, a thousand at a time.
-- A key lets one row run at a time, in the order of (priority, due_at, id) over all queues. A row that must wait leaves
-- the pick index (blocked_on), so that no later pick looks at it, and unblock lets it back. One that the key has let go
-- on to a limit, and that waits there, is the head until it has run.
-- A due row with a slot keeps others from being let back for that slot, as it is expected to take it. If it is blocked here
-- instead, the slot is handed over, under its gate's lock; one whose gate is contended is left as it is.
-- The lock on a key makes "nobody executes it and this is its head" true until commit; what is asked after it sees
-- whoever held it before, for a later statement has a later snapshot (tests/interleavings: claim_claim, block_release).
-- Index: instances_partition (who executes), instances_partition_order, instances_blocked and
-- instances_partition_admitted (the heads).
create or replace function @schema.admit_partitions(
  hits tid[], taken_keys text[], taken_ids bigint[], many int,
  out allowed tid[], out keys text[], out ids bigint[], out denied int, out contended int, out woken text[]
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
  locked text[];
  blocked tid[];
  crowded text[];
  gates text[];
  firsts bigint[];             -- of the gates: who runs next, or was let run already; null: somebody else runs
  heads bigint[];              -- of the crowded: they stay
  instead bigint[];
  slots text[];                -- the gates of slots that blocked rows do not take now
begin
  select array_agg(k.key) into locked
  from (
    select distinct i.partition_key as key from @schema.instances i
    where i.ctid = any (hits) and i.partition_key is not null
  ) as k
  where pg_try_advisory_xact_lock(@schema.gate_lock_id('partition/' || k.key));

  with c as materialized (
    select i.ctid as place, i.id, i.partition_key as key from @schema.instances i where i.ctid = any (hits)
  ),
  k as materialized (
    select l.key, coalesce(a.id, h.id) as head, a.id is null and h.blocked as blocked,
      l.key = any (taken_keys) as taken, l.key = any (taken_keys) or exists (
        select from @schema.instances e where e.status = 'executing' and e.partition_key = l.key
      ) as busy
    from unnest(locked) as l (key)
    left join lateral (
      select i.id from @schema.instances i
      where i.partition_key = l.key and (i.token_at is not null or not starts_with(i.blocked_on, 'partition/')) limit 1
    ) as a on true
    cross join lateral (
      select * from (
        (select i.priority, i.due_at as at, i.id, false as blocked from @schema.instances i
         where i.partition_key = l.key and i.due_at <= now() order by i.priority, i.due_at, i.id limit 1)
        union all
        (select i.priority, i.eligible_at, i.id, true from @schema.instances i
         where i.blocked_on = 'partition/' || l.key order by i.priority, i.eligible_at, i.id limit 1)
      ) as h
      order by h.priority, h.at, h.id limit 1
    ) as h
  ),
  j as (
    select c.place, c.id, c.key, k.key is not null as locked, c.key is null or (not k.busy and c.id = k.head) as may
    from c left join k on k.key = c.key
  )
  select
    array_agg(j.place) filter (where j.may),
    array_agg(j.key) filter (where j.may and j.key is not null),
    array_agg(j.id) filter (where j.may and j.key is not null),
    array_agg(j.place) filter (where j.locked and not j.may),
    count(*) filter (where not j.locked and j.key is not null),
    (select array_agg(k.head) from k where k.blocked and not k.busy),
    (select array_agg(k.key order by k.key) from k),
    (select array_agg(case
       when k.taken then taken_ids[array_position(taken_keys, k.key)] when not k.busy then k.head
     end order by k.key) from k)
  into allowed, keys, ids, blocked, contended, instead, gates, firsts
  from j;

  if exists (select from @schema.instances i where i.ctid = any (blocked) and i.slot_key is not null) then
    slots := array(
      select k.gate
      from (
        select distinct 'slot/' || i.slot_key as gate from @schema.instances i
        where i.ctid = any (blocked) and i.slot_key is not null
      ) as k
      where pg_try_advisory_xact_lock(@schema.gate_lock_id(k.gate))
    );
    contended := contended + cardinality(blocked);
    blocked := array(
      select i.ctid from @schema.instances i
      where i.ctid = any (blocked) and (i.slot_key is null or 'slot/' || i.slot_key = any (slots))
    );
    contended := contended - cardinality(blocked);
  end if;

  select array_agg(c.key), array_agg(k.head) into crowded, heads
  from (
    select i.partition_key as key from @schema.instances i where i.ctid = any (blocked)
    group by i.partition_key having count(*) >= many
  ) as c
  join unnest(gates, firsts) as k (key, head) on k.key = c.key;

  if crowded is not null then
    blocked := blocked || array(
      select s.place
      from unnest(crowded, heads) as k (key, head)
      cross join lateral (
        select i.ctid as place from @schema.instances i
        where i.partition_key = k.key and i.due_at <= now() and i.id <> coalesce(k.head, 0)
          and (i.slot_key is null or 'slot/' || i.slot_key = any (slots))
        order by i.priority, i.due_at, i.id
        limit bulk
        for no key update skip locked
      ) as s
    );
  end if;
  denied := 0;
  if blocked is not null then
    update @schema.instances i set
      blocked_on = 'partition/' || i.partition_key,
      eligible_at = case when i.token_at is null then i.due_at else i.eligible_at end,
      token_at = null
    where i.ctid = any (blocked);
    get diagnostics denied = row_count;
  end if;
  if instead is not null then
    with u as (
      update @schema.instances i set blocked_on = null
      where i.ctid = any (array(
        select b.ctid from @schema.instances b where b.id = any (instead) for no key update skip locked
      ))
      returning i.queue
    )
    select array_agg(distinct u.queue) into woken from u;
  end if;
  if cardinality(slots) > 0 then
    woken := woken || @schema.unblock(slots, false);
  end if;
end
$$;
