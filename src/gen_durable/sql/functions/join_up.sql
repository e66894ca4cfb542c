-- join_up: tell parents that children have ended. Each terminal commit calls it once for its rows.
--
-- In: ids of children that this transaction has ended, and whose parents' rows it has locked in id order.
-- Out: the queues of the parents that were released.
-- Index: primary key; `parent_id is not null` is not asked, it would let all of gen_durable_parent be read. Siblings that end in two transactions wait for each other on the parent's row.
create or replace function @schema.join_up(ended bigint[])
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  woken text[];
begin
  with n as (
    select c.parent_id, c.parent_round, count(*)::int as ended
    from @schema.gen_durable c where c.id = any (ended)
    group by c.parent_id, c.parent_round
  ),
  u as (
    update @schema.gen_durable p set
      children_pending = p.children_pending - n.ended,
      status = case when p.children_pending = n.ended then 'runnable' else p.status end,
      joined = p.children_pending = n.ended,
      eligible_at = case when p.children_pending = n.ended then now() else p.eligible_at end,
      await_deadline = case when p.children_pending = n.ended then null else p.await_deadline end,
      unique_scope = case
        when p.children_pending <> n.ended or 'runnable' = any (p.unique_scope) then p.unique_scope else '{}'
      end,
      updated_at = now()
    from n
    where p.id = n.parent_id and p.round = n.parent_round and p.status = 'awaiting_children'
    returning p.queue, p.status
  )
  select array_agg(distinct u.queue) filter (where u.status = 'runnable') into woken from u;
  return woken;
end
$$;
