-- cascade: cancel one batch of the children listed in `cascades`: of instances that were cancelled, or that went on without
-- them.
--
-- batch: how many children at most. of_origin: only those of this cancelled tree; null for any.
-- Returns how many were ended and how many execute and got a cancel request; woken, cancel_children and check_cancels as in
-- cancel; more: whether entries are left.
-- A listed parent starts no more children of the listed rounds, so each child is visited once, in id order. A child that has
-- children is listed in turn. If the calling process dies, any reaper finds the rest of the list. Gates that a cancel in a
-- caller's transaction has listed (cancel.sql) are unblocked together with those of the children.
-- Index: instances_parent, in its order; primary keys.
-- Locks: entries of the list, then the children in id order, both with SKIP LOCKED: a locked child is left to a later batch.
-- Their parents no longer wait for them, so release_parents locks none. Gates come last (tests/interleavings: cancel).
create or replace function @schema.cascade(batch int, of_origin bigint default null)
returns table (ended int, asked int, woken text[], cancel_children bigint[], check_cancels text[], more boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  entries constant int := 50;
  taken bigint[];
  share int;
  ids bigint[];
  lists bigint[];
  locked bigint[];
  reasons text[];
  origins bigint[];
  gates text[];
  unblocked text[];
  outcome record;
begin
  select array_agg(l.id) into taken
  from (
    select l.id from @schema.cascades l where of_origin is null or l.origin = of_origin
    order by l.id limit entries for update skip locked
  ) as l;
  if taken is null then
    return query select 0, 0, null::text[], null::bigint[], null::text[], false;
    return;
  end if;
  share := greatest(batch / cardinality(taken), 1);

  select array_agg(c.id order by c.id), array_agg(l.id order by c.id), array_agg(l.reason order by c.id),
    array_agg(l.origin order by c.id)
  into ids, lists, reasons, origins
  from @schema.cascades l
  cross join lateral (
    select c.id from @schema.instances c
    where c.parent_id = l.parent_id and c.parent_round between l.first_round and l.last_round and c.id > l.after
      and c.finished_at is null and c.cancel_reason is null
    order by c.parent_id, c.parent_round, c.id
    limit share
  ) as c
  where l.id = any (taken);
  select array_agg(k.gate) into gates from @schema.cascades l, unnest(l.gates) as k (gate)
  where l.id = any (taken);
  locked := array(
    select i.id from @schema.instances i where i.id = any (ids) order by i.id for no key update skip locked
  );

  -- An entry with a skipped child stays as it is, for a later batch.
  with seen as materialized (
    select t.id, count(f.id) as found, max(f.id) as last,
      coalesce(bool_and(f.id = any (locked)) filter (where f.id is not null), true) as whole
    from unnest(taken) as t (id)
    left join unnest(lists, ids) as f (list, id) on f.list = t.id
    group by t.id
  ),
  gone as (
    delete from @schema.cascades l where l.id in (select s.id from seen s where s.whole and s.found < share)
  )
  update @schema.cascades l set after = s.last
  from seen s where l.id = s.id and s.whole and s.found = share;

  select array_agg(f.id), array_agg(f.reason), array_agg(f.origin) into ids, reasons, origins
  from unnest(ids, reasons, origins) as f (id, reason, origin) where f.id = any (locked);
  select * into outcome from @schema.cancel_rows(
    ids, reasons, array_fill(true, array[coalesce(cardinality(ids), 0)]), origins
  );
  gates := gates || outcome.freed;
  if gates is not null then
    unblocked := @schema.unblock(gates, true);
  end if;
  return query
    select
      coalesce(cardinality(outcome.ended), 0), coalesce(cardinality(outcome.asked), 0), outcome.woken || unblocked,
      outcome.cancel_children, outcome.check_cancels,
      exists (select from @schema.cascades l where of_origin is null or l.origin = of_origin);
end
$$;
