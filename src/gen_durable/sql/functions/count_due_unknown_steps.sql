-- count_due_unknown_steps: count due rows in the queues of a worker that it has no code for. For a report, not for the hot path.
--
-- Parameters: the queues; the names that the worker knows ('machine/version/step').
-- Returns at most 20 unknown names with counts, from the first 1,000 such rows per queue. Index: instances_pick. Locks:
-- none.
create or replace function @schema.count_due_unknown_steps(queues text[], known text[])
returns table (fsm text, fsm_version int, step text, queue text, waiting int)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select unknown.fsm, unknown.fsm_version, unknown.step, unknown.queue, count(*)::int
  from unnest(queues) as known_queue (queue)
  cross join lateral (
    select i.fsm, i.fsm_version, i.step, i.queue
    from @schema.instances i
    where i.queue = known_queue.queue and i.due_at <= now()
      and @schema.qualified_step_name(i.fsm, i.fsm_version, i.step) <> all (known)
    limit 1000
  ) as unknown
  where @schema.require_max_elements(greatest(cardinality(queues), cardinality(known)), 100000)
  group by unknown.fsm, unknown.fsm_version, unknown.step, unknown.queue
  order by count(*) desc, unknown.fsm
  limit 20
$$;
