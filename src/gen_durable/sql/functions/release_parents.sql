-- release_parents: count ended children at their parents, and release the parents whose barrier opens. Each commit that
-- ends rows calls it once for them.
--
-- Parameters: ids of children that this transaction has ended, and whose parents' rows it has locked in id order.
-- Returns woken, the queues of the released parents; cancel_children, the parents that continue without their other
-- children, which cascade.sql cancels.
-- A barrier opens when all children have ended, when enough are done, when too few are left to be done, or at the first
-- child that is not done if the parent has on_failure. A parent that no longer waits for this round is not changed, so
-- a child that ends after its barrier has opened has no effect (tests/interleavings: join_early).
-- Index: primary key. The condition `parent_id is not null` is left out: with it the planner may read all of
-- instances_parent.
-- Locks: none beyond those of the caller. Siblings that end in two transactions wait for each other at the parent's
-- row.
create or replace function @schema.release_parents(ended bigint[], out woken text[], out cancel_children bigint[])
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
  with n as (
    select c.parent_id, c.parent_round, count(*)::int as ended, (count(*) filter (where c.status = 'done'))::int as done
    from @schema.instances c where c.id = any (ended)
    group by c.parent_id, c.parent_round
  ),
  u as (
    update @schema.instances p set
      (children_pending, children_needed, status, joined, eligible_at, await_deadline, unique_scope, cancel_rest) = (
        select
          case when b.opens then 0 else p.children_pending - n.ended end,
          p.children_needed - n.done,
          case when b.opens then 'runnable' else p.status end,
          b.opens,
          case when b.opens then now() else p.eligible_at end,
          case when b.opens then null else p.await_deadline end,
          case when b.opens then @schema.scope_after(p.unique_scope, 'runnable') else p.unique_scope end,
          case
            when not b.opens then p.cancel_rest
            when p.children_pending > n.ended then p.cancel_rest or (p.on_failure = 'cancel_rest' and n.done < n.ended)
          end
        from (
          select p.children_needed <= n.done is true
            or p.children_pending - n.ended < coalesce(p.children_needed - n.done, 1)
            or (p.on_failure is not null and n.done < n.ended) as opens
        ) as b
      ),
      updated_at = now()
    from n
    where p.id = n.parent_id and p.round = n.parent_round and p.status = 'awaiting_children'
    returning p.id, p.round, p.queue, p.status, p.cancel_rest
  ),
  rest as (
    insert into @schema.cascades (parent_id, first_round, last_round, origin, reason)
    select u.id, u.round, u.round, u.id, format('instance %s goes on without it', u.id) from u
    where u.status = 'runnable' and u.cancel_rest
    returning parent_id
  )
  select array_agg(distinct u.queue) filter (where u.status = 'runnable'),
    (select array_agg(rest.parent_id) from rest)
  into woken, cancel_children from u;
end
$$;
