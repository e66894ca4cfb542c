-- signal: deliver signals.
--
-- Parameters: one array per column, all of one length. A target is given by id or, where that is null, by unique key.
-- Returns one row per input row, in input order: the target's id; a verdict: 'delivered', 'duplicate', 'no_target' or
-- 'full' (10,000 unconsumed signals are in its inbox); and the queue to wake. That is the queue of a row that became
-- runnable, and of a row that was due already: the lock taken here may have hidden it from a picker that was just woken
-- for it (tests/flows/test_signals.py).
-- Index: primary key, instances_unique, signals_dedup.
-- Locks: the targets in id order, unconditionally: whether a row is parked is decided under its lock. A lock only on
-- rows that look parked would miss a row that is about to park (tests/interleavings: park_deliver).
create or replace function @schema.signal(
  targets bigint[], keys bytea[], names text[], payloads jsonb[], dedup_keys text[]
)
returns table (ord int, target bigint, verdict text, woken text)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  resolved bigint[];
  locked tid[];
begin
  select array_agg(coalesce(o.id, h.id) order by o.n) into resolved
  from unnest(targets, keys) with ordinality as o (id, key, n)
  left join lateral (
    select i.id from @schema.instances i where o.id is null and i.unique_guard = o.key
  ) as h on true;

  select array_agg(l.ctid) into locked
  from (
    select i.ctid from @schema.instances i where i.id = any (resolved) order by i.id for no key update
  ) as l;

  -- From here on the rows are found by their place, which cannot change under the lock: one look by key for each.
  return query
    with rows as materialized (
      select i.ctid as place, i.id, i.queue, i.status, i.awaits, i.has_signals, i.unique_guard, i.due_at <= now() as due,
             i.has_signals and exists (
               select from @schema.signals s where s.target_id = i.id and not s.consumed order by s.id offset 9999
             ) as full
      from @schema.instances i where i.ctid = any (locked) and i.finished_at is null
    ),
    o as (
      select o.*, r.queue, r.id as live_id, r.due, r.full
      from unnest(resolved, keys, names, payloads, dedup_keys) with ordinality as o (id, key, name, payload, dedup_key, n)
      left join rows r on r.id = o.id and (o.key is null or r.unique_guard = o.key)
    ),
    delivered as (
      insert into @schema.signals as s (target_id, name, payload, dedup_key)
      select o.id, o.name, o.payload, o.dedup_key from o where o.live_id is not null and not o.full order by o.n
      on conflict (target_id, dedup_key) where dedup_key is not null do nothing
      returning s.target_id, s.name, s.dedup_key
    ),
    touched as (
      update @schema.instances i set
        has_signals = true,
        status = case when w.wakes then 'runnable' else i.status end,
        eligible_at = case when w.wakes then now() else i.eligible_at end,
        await_deadline = case when w.wakes then null else i.await_deadline end,
        unique_scope = case when w.wakes then @schema.scope_after(i.unique_scope, 'runnable') else i.unique_scope end,
        updated_at = case when w.wakes then now() else i.updated_at end
      from (
        select r.place, r.has_signals, r.status = 'awaiting_signal' and r.awaits && d.names as wakes
        from (select d.target_id, array_agg(d.name) as names from delivered d group by d.target_id) as d
        join rows r on r.id = d.target_id
      ) as w
      where i.ctid = w.place and (w.wakes or not w.has_signals)
      returning i.id, w.wakes
    )
    select
      o.n::int,
      o.live_id,
      case
        when o.live_id is null then 'no_target'
        when o.full and not exists (
          select from @schema.signals s where s.target_id = o.id and s.dedup_key = o.dedup_key
        ) then 'full'
        when o.dedup_key is null then 'delivered'
        when exists (select from delivered d where d.target_id = o.id and d.dedup_key = o.dedup_key)
          and o.n = min(o.n) over (partition by o.id, o.dedup_key) then 'delivered'
        else 'duplicate'
      end,
      case when o.due or o.id in (select t.id from touched t where t.wakes) then o.queue end
    from o
    order by o.n;
end
$$;

-- The same for one signal from psql or any other client: `select gen_durable.signal(42, 'payment', '{"amount": 100}')`.
create or replace function @schema.signal(target bigint, name text, payload jsonb default null, dedup_key text default null)
returns text
language sql
set search_path = pg_catalog, pg_temp
as $$
  select s.verdict
  from @schema.signal(array[target], array[null::bytea], array[name], array[payload], array[dedup_key]) as s
$$;

create or replace function @schema.signal(key text, name text, payload jsonb default null, dedup_key text default null)
returns text
language sql
set search_path = pg_catalog, pg_temp
as $$
  select s.verdict
  from @schema.signal(
    array[null::bigint], array[convert_to(key, 'UTF8')], array[name], array[payload], array[dedup_key]
  ) as s
$$;
