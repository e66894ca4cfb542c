-- cancel_listed_descendants: cancel one batch of the children listed in `cascades`: children of cancelled instances, and of
-- instances that continued without them.
--
-- Parameters: batch, the most children to cancel; of_origin, only those of this cancelled tree, null for any. A login that
-- may change only its own instances (may_change_instances_of_others.sql) must name one of them: for any other tree nothing
-- is listed.
-- Returns how many ended and how many execute and got a cancel request; woken_queues, cascade_origins and
-- workers_with_cancel_requests as in cancel; more, whether entries are left; refused, children whose rows the database does not
-- let change, and refusal, the SQLSTATE of one of them.
-- A listed parent starts no more children of the listed rounds, so each child is visited once, in id order. Children
-- that are locked or refused are skipped; when the others are done, the entry starts again at the first of them. The
-- entry that was visited longest ago comes first, so entries with such children do not delay the others. A child that
-- has children is listed in turn. If the calling process dies, any reaper finds the rest of the list. Gates that a
-- cancel in a caller's transaction has listed (cancel.sql) are unblocked together with those of the children; if that
-- is refused, they are left to unblock_missed_rows.
-- Index: cascades_visited, cascades_origin; instances_parent, in its order; primary keys.
-- Locks: entries of the list, then the children in id order, both with SKIP LOCKED. Their parents no longer wait for
-- them, so count_ended_children_and_wake_parents locks none. Gates come last (tests/interleavings: cancel).
-- Guarded by tests/store/test_cascade.py.
create or replace function @schema.cancel_listed_descendants(batch int, of_origin bigint default null)
returns table (
  ended int, requested int, woken_queues text[], cascade_origins bigint[], workers_with_cancel_requests text[], more boolean,
  refused bigint[],
  refusal text
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
#variable_conflict use_column
declare
  max_entries constant int := 50;
  entry_ids bigint[];
  share int;        -- the most children per entry
  ids bigint[];
  entries_of_ids bigint[];
  locked_ids bigint[];
  reasons text[];
  origins bigint[];
  gates text[];
  unblocked text[];
  outcome record;
begin
  if session_user <> current_user and not @schema.may_change_instances_of_others()
    and (@schema.ids_of_own_instances(array[of_origin]))[1] is null then
    return query select 0, 0, null::text[], null::bigint[], null::text[], false, null::bigint[], null::text;
    return;
  end if;
  select array_agg(entry.id) into entry_ids
  from (
    select entry.id from @schema.cascades entry where of_origin is null or entry.origin = of_origin
    order by entry.visited_at, entry.id limit max_entries for update skip locked
  ) as entry;
  if entry_ids is null then
    -- Entries that another session has locked are left to it.
    return query
      select 0, 0, null::text[], null::bigint[], null::text[],
        exists (select from @schema.cascades entry where of_origin is null or entry.origin = of_origin),
        null::bigint[], null::text;
    return;
  end if;
  share := greatest(batch / cardinality(entry_ids), 1);

  select array_agg(child.id order by child.id), array_agg(entry.id order by child.id),
    array_agg(entry.reason order by child.id), array_agg(entry.origin order by child.id)
  into ids, entries_of_ids, reasons, origins
  from @schema.cascades entry
  cross join lateral (
    select child.id from @schema.instances child
    where child.parent_id = entry.parent_id
      and child.parent_round between entry.first_round and entry.last_round and child.id > entry.after
      and child.finished_at is null and child.cancel_reason is null
    order by child.parent_id, child.parent_round, child.id
    limit share
  ) as child
  where entry.id = any (entry_ids);
  select array_agg(freed.gate) into gates from @schema.cascades entry, unnest(entry.gates) as freed (gate)
  where entry.id = any (entry_ids);
  locked_ids := array(
    select i.id from @schema.instances i where i.id = any (ids) order by i.id for no key update skip locked
  );

  select array_agg(found_child.reason order by found_child.id), array_agg(found_child.origin order by found_child.id)
  into reasons, origins
  from unnest(ids, reasons, origins) as found_child (id, reason, origin) where found_child.id = any (locked_ids);
  select * into outcome from @schema.cancel_skipping_refused_rows(locked_ids, reasons, origins);
  with visited as materialized (
    select taken.id, count(found_child.id) = share as has_more, max(found_child.id) as last,
      least(taken.first_skipped, min(found_child.id) filter (
        where found_child.id <> all (locked_ids) or found_child.id = any (outcome.refused)
      )) as first_skipped
    from (select entry.id, entry.first_skipped from @schema.cascades entry where entry.id = any (entry_ids)) as taken
    left join unnest(entries_of_ids, ids) as found_child (entry_id, id) on found_child.entry_id = taken.id
    group by taken.id, taken.first_skipped
  ),
  finished as (
    delete from @schema.cascades entry using visited
    where entry.id = visited.id and not visited.has_more and visited.first_skipped is null
  )
  update @schema.cascades entry set
    visited_at = now(),
    after = case when visited.has_more then visited.last else visited.first_skipped - 1 end,
    first_skipped = case when visited.has_more then visited.first_skipped end
  from visited where entry.id = visited.id and (visited.has_more or visited.first_skipped is not null);

  gates := gates || outcome.freed_gates;
  if gates is not null then
    begin
      unblocked := @schema.unblock(gates, true);
    exception when others then
      if not @schema.is_permanent_error(sqlstate) then
        raise;
      end if;
    end;
  end if;
  return query
    select
      coalesce(cardinality(outcome.ended), 0), coalesce(cardinality(outcome.requested), 0),
      outcome.woken_queues || unblocked, outcome.cascade_origins, outcome.workers_with_cancel_requests,
      exists (select from @schema.cascades entry where of_origin is null or entry.origin = of_origin),
      outcome.refused, outcome.refusal;
end
$$;

comment on function @schema.cancel_listed_descendants(int, bigint) is
  'Cancels the next batch of descendants of cancelled instances. Clients call it after cancel until more is '
  'false; otherwise a worker does.';
