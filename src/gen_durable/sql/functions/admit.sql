-- admit: which of the rows that a pick has found may run, by their partition keys. The others are blocked.
--
-- In: places of due rows that this transaction has locked. Out: the places of those that may run; how many were blocked;
-- how many are of keys that another session is dealing with just now, and were left as they are; the queues in which
-- another row became due instead.
-- A key lets one row run at a time, in the order of (priority, due_at, id) over all queues. A row that must wait leaves
-- the pick index (blocked_on), so that no later pick looks at it, and hand_over lets it back.
-- The lock on a key makes "nobody executes it and this is its head" true until commit; what is asked after it sees
-- whoever held it before, for a later statement has a later snapshot (tests/interleavings: claim_claim, block_release).
-- Index: gen_durable_partition (who executes), gen_durable_partition_order and gen_durable_blocked (the heads).
create or replace function @schema.admit(
  hits tid[], out allowed tid[], out denied int, out contended int, out woken text[]
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
  many constant int := 10;     -- a key of which so many wait here has more of them behind
  bulk constant int := 1000;   -- so they are blocked too, so many at a time
  locked text[];
  blocked tid[];
  crowded text[];
  heads bigint[];              -- of the crowded: they may be among the allowed
  instead bigint[];
begin
  select array_agg(k.key) into locked
  from (
    select distinct g.partition_key as key from @schema.gen_durable g
    where g.ctid = any (hits) and g.partition_key is not null
  ) as k
  where pg_try_advisory_xact_lock(@schema.gate_number(k.key));

  with c as materialized (
    select g.ctid as place, g.id, g.partition_key as key from @schema.gen_durable g where g.ctid = any (hits)
  ),
  k as materialized (
    select l.key, h.id as head, h.blocked, exists (
      select from @schema.gen_durable e where e.status = 'executing' and e.partition_key = l.key
    ) as busy
    from unnest(locked) as l (key)
    cross join lateral (
      select * from (
        (select g.priority, g.due_at as at, g.id, false as blocked from @schema.gen_durable g
         where g.partition_key = l.key and g.due_at <= now() order by g.priority, g.due_at, g.id limit 1)
        union all
        (select g.priority, g.eligible_at, g.id, true from @schema.gen_durable g
         where g.blocked_on = 'partition/' || l.key order by g.priority, g.eligible_at, g.id limit 1)
      ) as h
      order by h.priority, h.at, h.id limit 1
    ) as h
  ),
  j as (
    select c.place, c.key, k.key is not null as locked, c.key is null or (not k.busy and c.id = k.head) as may
    from c left join k on k.key = c.key
  )
  select
    array_agg(j.place) filter (where j.may),
    array_agg(j.place) filter (where j.locked and not j.may),
    count(*) filter (where not j.locked and j.key is not null),
    (select array_agg(k.head) from k where k.blocked and not k.busy)
  into allowed, blocked, contended, instead
  from j;

  select array_agg(k.key), array_agg(k.head) into crowded, heads
  from (
    select g.partition_key as key, min(g.id) filter (where g.ctid = any (allowed)) as head
    from @schema.gen_durable g where g.ctid = any (hits)
    group by g.partition_key having count(*) filter (where g.ctid = any (blocked)) >= many
  ) as k;

  if crowded is not null then
    blocked := blocked || array(
      select s.place
      from unnest(crowded, heads) as k (key, head)
      cross join lateral (
        select g.ctid as place from @schema.gen_durable g
        where g.partition_key = k.key and g.due_at <= now() and g.id <> coalesce(k.head, 0)
        order by g.priority, g.due_at, g.id
        limit bulk
        for no key update skip locked
      ) as s
    );
  end if;
  denied := 0;
  if blocked is not null then
    update @schema.gen_durable g set blocked_on = 'partition/' || g.partition_key, eligible_at = g.due_at
    where g.ctid = any (blocked);
    get diagnostics denied = row_count;
  end if;
  if instead is not null then
    with u as (
      update @schema.gen_durable g set blocked_on = null
      where g.ctid = any (array(
        select b.ctid from @schema.gen_durable b where b.id = any (instead) for no key update skip locked
      ))
      returning g.queue
    )
    select array_agg(distinct u.queue) into woken from u;
  end if;
end
$$;
