-- get: one instance, by id or, where that is null, by the unique key it holds. Index: primary key, gen_durable_unique.
create or replace function @schema.get(instance bigint, key bytea default null)
returns table (
  id bigint, fsm text, fsm_version int, step text, status text, queue text, priority smallint, partition_key text,
  unique_key bytea, awaits text[], attempt int, crashes int, claims int, seq int, last_error text, locked_by text,
  parent_id bigint, children_pending int, eligible_at timestamptz, await_deadline timestamptz, inserted_at timestamptz,
  updated_at timestamptz, finished_at timestamptz, state jsonb, result jsonb
)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select
    g.id, g.fsm, g.fsm_version, g.step, g.status::text, g.queue, g.priority, g.partition_key, g.unique_key, g.awaits,
    g.attempt, g.crashes, g.claims, g.seq, g.last_error, g.locked_by, g.parent_id, g.children_pending, g.eligible_at,
    g.await_deadline, g.inserted_at, g.updated_at, g.finished_at, g.state, g.result
  from @schema.gen_durable g
  where g.id = instance
  union all
  select
    g.id, g.fsm, g.fsm_version, g.step, g.status::text, g.queue, g.priority, g.partition_key, g.unique_key, g.awaits,
    g.attempt, g.crashes, g.claims, g.seq, g.last_error, g.locked_by, g.parent_id, g.children_pending, g.eligible_at,
    g.await_deadline, g.inserted_at, g.updated_at, g.finished_at, g.state, g.result
  from @schema.gen_durable g
  where instance is null and g.unique_guard = key
$$;
