-- count_ended_children_and_wake_parents: count ended children at their parents, and release the parents whose barrier
-- opens. Each commit that ends rows calls it once for them.
--
-- Parameters: ids of children that this transaction has ended, and whose parents' rows it has locked in id order.
-- Returns woken_queues, the queues of the released parents; cascade_origins, the parents that continue without their
-- other children, which cancel_listed_descendants.sql cancels.
-- A barrier opens when all children have ended, when enough are done, when too few are left to be done, or at the first
-- child that is not done if the parent has on_failure. A parent that no longer waits for this round is not changed, so
-- a child that ends after its barrier has opened has no effect (tests/interleavings: join_early).
-- Index: primary key. The condition `parent_id is not null` is left out: with it the planner may read all of
-- instances_parent.
-- Locks: none beyond those of the caller. Siblings that end in two transactions wait for each other at the parent's
-- row.
create or replace function @schema.count_ended_children_and_wake_parents(
  ended bigint[], out woken_queues text[], out cascade_origins bigint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
  with round_ends as (
    select child.parent_id, child.parent_round, count(*)::int as ended,
      (count(*) filter (where child.status = 'done'))::int as done
    from @schema.instances child where child.id = any (ended)
    group by child.parent_id, child.parent_round
  ),
  updated as (
    update @schema.instances parent set
      (children_pending, children_needed, status, joined, eligible_at, await_deadline, unique_scope, cancel_rest) = (
        select
          case when barrier.opens then 0 else parent.children_pending - round_ends.ended end,
          parent.children_needed - round_ends.done,
          case when barrier.opens then 'runnable' else parent.status end,
          barrier.opens,
          case when barrier.opens then now() else parent.eligible_at end,
          case when barrier.opens then null else parent.await_deadline end,
          case when barrier.opens then @schema.unique_scope_for_status(parent.unique_scope, 'runnable') else parent.unique_scope end,
          case
            when not barrier.opens then parent.cancel_rest
            when parent.children_pending > round_ends.ended
              then parent.cancel_rest or (parent.on_failure = 'cancel_rest' and round_ends.done < round_ends.ended)
          end
        from (
          select parent.children_needed <= round_ends.done is true
            or parent.children_pending - round_ends.ended < coalesce(parent.children_needed - round_ends.done, 1)
            or (parent.on_failure is not null and round_ends.done < round_ends.ended) as opens
        ) as barrier
      ),
      updated_at = now()
    from round_ends
    where parent.id = round_ends.parent_id
      and parent.round = round_ends.parent_round and parent.status = 'awaiting_children'
    returning parent.id, parent.round, parent.queue, parent.status, parent.cancel_rest
  ),
  rest as (
    insert into @schema.cascades (parent_id, first_round, last_round, origin, reason)
    select updated.id, updated.round, updated.round, updated.id, format('instance %s goes on without it', updated.id)
    from updated
    where updated.status = 'runnable' and updated.cancel_rest
    returning parent_id
  )
  select array_agg(distinct updated.queue) filter (where updated.status = 'runnable'),
    (select array_agg(rest.parent_id) from rest)
  into woken_queues, cascade_origins from updated;
end
$$;
