-- queues_of_blocked_rows: the queues in which rows are blocked on limits, gate by gate.
--
-- Parameter: gates of limits; a partition gate has no rows here. Returns one row per gate and queue.
-- Index: instances_limited, stepping from queue to queue. Locks: none.
-- Guarded by tests/store/test_guards.py (test_a_slot_is_offered_in_every_queue_that_waits_for_it).
create or replace function @schema.queues_of_blocked_rows(gates text[])
returns table (gate text, queue text)
language sql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  with recursive waiting as (
    select wanted.gate, (
      select i.queue from @schema.instances i
      where i.blocked_on = wanted.gate and not starts_with(i.blocked_on, 'partition/') order by i.queue limit 1
    ) as queue
    from unnest(gates) as wanted (gate)
    union all
    select waiting.gate, (
      select i.queue from @schema.instances i
      where i.blocked_on = waiting.gate and not starts_with(i.blocked_on, 'partition/') and i.queue > waiting.queue
      order by i.queue limit 1
    )
    from waiting where waiting.queue is not null
  )
  select waiting.gate, waiting.queue from waiting where waiting.queue is not null
$$;
