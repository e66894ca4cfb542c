-- instances_of: instances by their ids, newest first.
--
-- Parameters: ids; payloads, whether to return states, results and tracebacks, which may be large. Returns one row per instance
-- that exists. A login that may not read all instances sees those that it has inserted (may_read_column.sql).
-- Index: primary key. Locks: none.
create or replace function @schema.instances_of(ids bigint[], payloads boolean)
returns table (
  id bigint, fsm text, fsm_version int, step text, status text, queue text, priority smallint, partition_key text,
  unique_key bytea, awaits text[], attempt bigint, crashes int, claims bigint, seq bigint, last_error text, locked_by text,
  parent_id bigint, children_pending int, eligible_at timestamptz, await_deadline timestamptz, inserted_at timestamptz,
  updated_at timestamptz, finished_at timestamptz, state jsonb, result jsonb, metadata jsonb, blocked_on text,
  due_at timestamptz, error_type text, last_traceback text, token_at timestamptz, rate_key text, children_needed int,
  step_errors int, postponements smallint, started_at timestamptz
)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select
    i.id, i.fsm, i.fsm_version, i.step, i.status::text, i.queue, i.priority, i.partition_key, i.unique_key, i.awaits,
    i.attempt, i.crashes, i.claims, i.seq, case when login.sees_payloads then i.last_error end, i.locked_by,
    i.parent_id,
    i.children_pending, i.eligible_at,
    case when i.status in ('awaiting_signal', 'awaiting_children') then i.await_deadline end, i.inserted_at, i.updated_at, i.finished_at,
    case when payloads and login.sees_payloads then i.state end,
    case when payloads and login.sees_payloads then i.result end, i.metadata,
    i.blocked_on, i.due_at, i.error_type, case when payloads and login.sees_payloads then i.last_traceback end,
    i.token_at, i.rate_key, i.children_needed, i.step_errors, i.postponements, i.started_at
  from @schema.instances i
  cross join lateral (
    select (select @schema.may_read_column('state')) or coalesce(i.inserted_by = (select @schema.session_login()), false)
  ) as login (sees_payloads)
  where i.id = any (ids) and @schema.require_max_elements(cardinality(ids), 100000) and ((select @schema.may_read_column('id')) or i.inserted_by = (select @schema.session_login()))
  order by i.id desc
$$;

comment on function @schema.instances_of(bigint[], boolean) is
  'Returns instances by their ids, newest first; with payloads => true also states, results and tracebacks.';
