-- cancel: end waiting instances at once, and request the cancel of executing ones.
--
-- targets, keys: instances by id or, where that is null, by unique key. reason: stored as last_error. cascades: cancel the
-- descendants too, in transactions of their own (cascade.sql); they are listed here. in_transaction: the call is a part of
-- the caller's transaction, which may be long and lock more rows later. Gates are not locked then, but listed with the
-- descendants, and unblocked after the commit (tests/interleavings: cancel_in_transaction).
-- Returns one row per target, in input order: its id, its status before, and a verdict: 'ended' (it was waiting), 'requested'
-- (it executes: its worker stops it), 'over' (it had ended) or 'no_target'. The first row also holds woken, the queues in
-- which rows became runnable; cancel_children, the instances whose children must be cancelled now; check_cancels, the workers
-- that run a target.
-- Index: primary key, instances_unique.
-- Locks: targets and parents in id order, unconditionally, as in flush and signal: the verdict depends on the row under its
-- lock (tests/interleavings: cancel_flush, cancel_join, cancel_pick).
create or replace function @schema.cancel(
  targets bigint[], keys bytea[], reason text, cascades boolean, in_transaction boolean default false
)
returns table (ord int, target bigint, was text, verdict text, woken text[], cancel_children bigint[], check_cancels text[])
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  wanted bigint[];
  above bigint[];   -- their parents
  live bigint[];
  states text[];
  outcome record;
  hidden text[];  -- queues of parents that the lock may have hidden from a pick (signal.sql)
  unblocked text[];
  listed bigint[];  -- targets whose descendants are cancelled after the caller's commit
begin
  select array_agg(coalesce(o.id, h.id) order by o.n) into wanted
  from unnest(targets, keys) with ordinality as o (id, key, n)
  left join lateral (
    select i.id from @schema.instances i where o.id is null and i.unique_guard = o.key
  ) as h on true;
  above := array(select c.parent_id from @schema.instances c where c.id = any (wanted));  -- who never change
  perform from @schema.instances i
  where i.id = any (wanted || above)
  order by i.id
  for no key update;

  select array_agg(case when o.key is null or i.unique_guard = o.key then i.id end order by o.n),
    array_agg(i.status::text order by o.n)
  into live, states
  from unnest(wanted, keys) with ordinality as o (id, key, n)
  left join @schema.instances i on i.id = o.id;
  select * into outcome from @schema.cancel_rows(
    live, array_fill(reason, array[cardinality(live)]), array_fill(cascades, array[cardinality(live)]), live
  );
  if in_transaction then
    insert into @schema.cascades (origin, reason, gates)
    select outcome.ended[1], reason, outcome.freed where outcome.freed is not null;
    listed := array(select distinct l.origin from @schema.cascades l where l.origin = any (live));
  elsif outcome.freed is not null then
    unblocked := @schema.unblock(outcome.freed, true);
  end if;
  hidden := array(
    select distinct p.queue from @schema.instances p
    where p.id = any (above) and p.due_at <= now() is true  -- said so, or the pick index is read
  );

  return query
    select
      o.n::int, o.id, case when o.id is not null then o.status end,
      case
        when o.id is null then 'no_target' when o.id = any (outcome.ended) then 'ended'
        when o.id = any (outcome.asked) then 'requested' else 'over'
      end,
      case when o.n = 1 then coalesce(outcome.woken, '{}') || hidden || unblocked end,
      case when o.n = 1 then outcome.cancel_children || listed end,
      case when o.n = 1 then outcome.check_cancels end
    from unnest(live, states) with ordinality as o (id, status, n)
    order by o.n;
end
$$;

-- The same for one instance, in the caller's transaction, from psql or any other client: `select gen_durable.cancel(42, 'why')`.
-- Workers find the request with their next heartbeat, and a reaper cancels the descendants.
create or replace function @schema.cancel(target bigint, reason text, cascades boolean default true)
returns text
language sql
set search_path = pg_catalog, pg_temp
as $$
  select c.verdict from @schema.cancel(array[target], array[null::bytea], reason, cascades, true) as c
$$;

create or replace function @schema.cancel(key text, reason text, cascades boolean default true)
returns text
language sql
set search_path = pg_catalog, pg_temp
as $$
  select c.verdict from @schema.cancel(array[null::bigint], array[convert_to(key, 'UTF8')], reason, cascades, true) as c
$$;
