-- cancel: end waiting instances at once, and request the cancel of executing ones.
--
-- Parameters: targets, keys: instances by id or, where that is null, by the unique key of a live holder. reason: stored as last_error.
-- cascades: cancel the descendants too, in transactions of their own (cancel_listed_descendants.sql); they are listed here.
-- in_transaction: the call is part of the caller's transaction, which may be long and lock more rows later. Gates are
-- not locked then, but listed with the descendants, and unblocked after the commit (tests/interleavings:
-- cancel_in_transaction).
-- Returns one row per target, in input order: its id, its status before, and a verdict: 'ended' (it was waiting),
-- 'requested' (it executes, and its worker stops it), 'over' (it had ended) or 'no_target'. The first row also holds
-- woken_queues, the queues in which rows became runnable; cascade_origins, the instances whose children must be
-- cancelled now; workers_with_cancel_requests, the workers that run a target.
-- Index: primary key, instances_unique.
-- Locks: targets and parents in id order, unconditionally, as in flush and signal: the verdict depends on the row under
-- its lock (tests/interleavings: cancel_flush, cancel_join, cancel_pick).
create or replace function @schema.cancel(
  targets bigint[], keys bytea[], reason text, cascades boolean, in_transaction boolean default false
)
returns table (
  ord int, target bigint, was text, verdict text, woken_queues text[], cascade_origins bigint[],
  workers_with_cancel_requests text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  target_ids bigint[];
  parent_ids bigint[];
  live_ids bigint[];
  statuses text[];
  outcome record;
  hidden_queues text[];  -- queues of parents that the lock may have hidden from a pick (signal.sql)
  unblocked text[];
  listed_ids bigint[];  -- targets whose descendants are cancelled after the caller's commit
begin
  perform @schema.require_max_elements(greatest(cardinality(targets), cardinality(keys)));
  select array_agg(coalesce(given.id, holder.id) order by given.ord) into target_ids
  from unnest(targets, keys) with ordinality as given (id, key, ord)
  left join lateral (
    select i.id from @schema.instances i where given.id is null and i.unique_guard = given.key
  ) as holder on true;
  if session_user <> current_user and not @schema.may_change_instances_of_others() then
    target_ids := @schema.ids_of_own_instances(target_ids);
  end if;
  parent_ids := array(  -- a parent never changes
    select child.parent_id from @schema.instances child where child.id = any (target_ids)
  );
  perform from @schema.instances i
  where i.id = any (target_ids || parent_ids)
  order by i.id
  for no key update;

  -- Not null for a call without targets: array_fill would raise an error.
  select coalesce(array_agg(
      case when given.key is null or (i.unique_guard = given.key and i.finished_at is null) then i.id end order by given.ord
    ), '{}'), array_agg(i.status::text order by given.ord)
  into live_ids, statuses
  from unnest(target_ids, keys) with ordinality as given (id, key, ord)
  left join @schema.instances i on i.id = given.id;
  select * into outcome from @schema.end_or_request_cancel(
    live_ids, array_fill(reason, array[cardinality(live_ids)]), array_fill(cascades, array[cardinality(live_ids)]),
    live_ids
  );
  if in_transaction then
    insert into @schema.cascades (origin, reason, gates)
    select outcome.ended[1], reason, outcome.freed_gates where outcome.freed_gates is not null;
    listed_ids := array(
      select distinct entry.origin from @schema.cascades entry where entry.origin = any (live_ids)
    );
  elsif outcome.freed_gates is not null then
    unblocked := @schema.unblock(outcome.freed_gates, true);
  end if;
  hidden_queues := array(
    select distinct parent.queue from @schema.instances parent
    where parent.id = any (parent_ids) and parent.due_at <= now() is true  -- or the planner reads the pick index
  );

  return query
    select
      given.ord::int, given.id, case when given.id is not null then given.status end,
      case
        when given.id is null then 'no_target' when given.id = any (outcome.ended) then 'ended'
        when given.id = any (outcome.requested) then 'requested' else 'over'
      end,
      case when given.ord = 1 then coalesce(outcome.woken_queues, '{}') || hidden_queues || unblocked end,
      case when given.ord = 1 then outcome.cascade_origins || listed_ids end,
      case when given.ord = 1 then outcome.workers_with_cancel_requests end
    from unnest(live_ids, statuses) with ordinality as given (id, status, ord)
    order by given.ord;
end
$$;

-- One instance, in the caller's transaction, from psql or any other client: `select gen_durable.cancel(42, 'why')`.
-- notify: wake the workers with the commit (notify_workers.sql). Without it they find the request with their next
-- heartbeat, and a reaper cancels the descendants.
create or replace function @schema.cancel(
  target bigint, reason text, cascades boolean default true, notify boolean default true
)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  cancelled record;
begin
  select * into cancelled from @schema.cancel(array[target], array[null::bytea], reason, cascades, true);
  if notify then
    perform @schema.notify_workers('queue', cancelled.woken_queues),
      @schema.notify_workers('cancel_children', cancelled.cascade_origins::text[]),
      @schema.notify_workers('check_cancel_requests', cancelled.workers_with_cancel_requests);
  end if;
  return cancelled.verdict;
end
$$;

create or replace function @schema.cancel(
  key text, reason text, cascades boolean default true, notify boolean default true
)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  cancelled record;
begin
  select * into cancelled from @schema.cancel(array[null::bigint], array[convert_to(key, 'UTF8')], reason, cascades, true);
  if notify then
    perform @schema.notify_workers('queue', cancelled.woken_queues),
      @schema.notify_workers('cancel_children', cancelled.cascade_origins::text[]),
      @schema.notify_workers('check_cancel_requests', cancelled.workers_with_cancel_requests);
  end if;
  return cancelled.verdict;
end
$$;

comment on function @schema.cancel(bigint[], bytea[], text, boolean, boolean) is
  'Cancels instances given by id or by unique key. Returns a verdict per instance: ended, requested, over or '
  'no_target.';

comment on function @schema.cancel(bigint, text, boolean, boolean) is
  'Cancels one instance and, by default, its descendants: select gen_durable.cancel(42, ''ordered twice''). '
  'Returns ended (it was waiting), requested (its worker stops it), over (it had ended) or no_target. Your commit '
  'notifies the workers; with notify => false they find out within seconds, and your commit waits for no other.';

comment on function @schema.cancel(text, text, boolean, boolean) is
  'Cancels the live instance that holds a unique key and, by default, its descendants: select '
  'gen_durable.cancel(''order-42'', ''ordered twice''). Returns ended, requested or no_target. notify as for the '
  'other.';
