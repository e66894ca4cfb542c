-- unblock_slot_rows: the part of unblock for concurrency limits: unblock as many rows as the limit has free slots.
--
-- Parameters: gates that this transaction has locked (gates of other kinds are ignored); `is_cautious`: see below.
-- Returns the queues of the unblocked rows.
-- Each queue is offered all free slots: rows of a queue that no worker serves must not keep slots from the others.
-- The pick that finds more rows than slots blocks the surplus again.
-- Rows of the queue that are due already count as users of the free slots, for 5 s after their last change: a row that
-- stays due for longer may belong to a machine that no worker knows, and must not keep others blocked. If such rows
-- exist, a cautious call (unblock_missed_rows) unblocks one row only, since perhaps no worker serves the queue; the commit
-- of that row unblocks the others.
-- A limit that was removed blocks no row: up to 1,000 rows of its gate are unblocked.
-- Index: instances_limited (blocked rows), instances_slot, instances_slot_due. Locks: the rows with SKIP LOCKED.
-- Guarded by tests/store/test_limits.py, test_limits_corners.py, test_no_waiting.py.
create or replace function @schema.unblock_slot_rows(gates text[], is_cautious boolean)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  bulk constant int := 1000;
  woken_queues text[];
begin
  with offer as materialized (
    select waiting.gate, waiting.queue, policy.slots is not null as has_policy, case
      when policy.slots is null then bulk
      else least(policy.slots - @schema.count_taken_slots(@schema.key_of_gate(waiting.gate), policy.slots), bulk)
    end as free_slots
    from @schema.queues_of_blocked_rows(gates) as waiting
    left join @schema.limits policy
      on policy.name = split_part(@schema.key_of_gate(waiting.gate), '/', 1) and policy.kind = 'concurrency'
    where starts_with(waiting.gate, 'slot/')
  ),
  locked_row as materialized (
    select first_blocked.tid
    from offer
    cross join lateral (
      select count(*) as total, count(*) filter (where due_row.updated_at > now() - interval '5 seconds') as fresh
      from (
        select i.updated_at from @schema.instances i
        where offer.has_policy and i.slot_key = @schema.key_of_gate(offer.gate) and i.queue = offer.queue
          and coalesce(i.due_at, 'infinity') <= now() and coalesce(i.due_at, 'infinity') < 'infinity'
        limit greatest(offer.free_slots, 0)
      ) as due_row
    ) as due
    cross join lateral (
      select i.ctid as tid from @schema.instances i
      where i.blocked_on = offer.gate and not starts_with(i.blocked_on, 'partition/') and i.queue = offer.queue
      order by i.priority, i.eligible_at, i.id
      limit greatest(
        least(offer.free_slots - due.fresh, case when is_cautious and due.total > 0 then 1 else bulk end), 0
      )
      for no key update skip locked
    ) as first_blocked
  ),
  unblocked as (
    update @schema.instances i set blocked_on = null, updated_at = now()
    from locked_row where i.ctid = locked_row.tid
    returning i.queue
  )
  select array_agg(distinct unblocked.queue) into woken_queues from unblocked;
  return woken_queues;
end
$$;
