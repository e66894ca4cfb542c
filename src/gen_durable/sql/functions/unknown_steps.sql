-- unknown_steps: due rows in a worker's queues that it cannot run, counted by name. For a report, not for the hot path.
--
-- In: the queues; the names the worker knows ('machine/version/step'). Out: unknown names with counts, at most 20, out of
-- the first 1,000 such rows per queue. Index: instances_pick.
create or replace function @schema.unknown_steps(queues text[], known text[])
returns table (fsm text, fsm_version int, step text, queue text, waiting int)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select r.fsm, r.fsm_version, r.step, r.queue, count(*)::int
  from unnest(queues) as q (queue)
  cross join lateral (
    select i.fsm, i.fsm_version, i.step, i.queue
    from @schema.instances i
    where i.queue = q.queue and i.due_at <= now()
      and @schema.step_name(i.fsm, i.fsm_version, i.step) <> all (known)
    limit 1000
  ) as r
  group by r.fsm, r.fsm_version, r.step, r.queue
  order by count(*) desc, r.fsm
  limit 20
$$;
