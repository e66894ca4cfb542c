-- look: instances by their ids, newest first.
--
-- In: ids; whether states and results come along, which may be large. Out: one row per instance that exists.
-- Whoever may see no other instances sees those that he has started (entitled.sql). Index: primary key. Locks: none.
create or replace function @schema.look(ids bigint[], payloads boolean)
returns table (
  id bigint, fsm text, fsm_version int, step text, status text, queue text, priority smallint, partition_key text,
  unique_key bytea, awaits text[], attempt int, crashes int, claims int, seq int, last_error text, locked_by text,
  parent_id bigint, children_pending int, eligible_at timestamptz, await_deadline timestamptz, inserted_at timestamptz,
  updated_at timestamptz, finished_at timestamptz, state jsonb, result jsonb, metadata jsonb, blocked_on text,
  due_at timestamptz
)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select
    g.id, g.fsm, g.fsm_version, g.step, g.status::text, g.queue, g.priority, g.partition_key, g.unique_key, g.awaits,
    g.attempt, g.crashes, g.claims, g.seq, case when p.seen then g.last_error end, g.locked_by, g.parent_id,
    g.children_pending, g.eligible_at, g.await_deadline, g.inserted_at, g.updated_at, g.finished_at,
    case when payloads and p.seen then g.state end, case when payloads and p.seen then g.result end, g.metadata,
    g.blocked_on, g.due_at
  from @schema.gen_durable g
  cross join lateral (select (select @schema.entitled('state')) or coalesce(g.inserted_by = session_user, false)) as p (seen)
  where g.id = any (ids) and ((select @schema.entitled('id')) or g.inserted_by = session_user)
  order by g.id desc
$$;
