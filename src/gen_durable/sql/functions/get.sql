-- get: one instance, by id or, where that is null, by unique key (id_of_key.sql). The columns are those of
-- instances_of.
--
-- Index: primary key, instances_unique, instances_key. Locks: none.
create or replace function @schema.get(instance bigint, key bytea default null)
returns table (
  id bigint, fsm text, fsm_version int, step text, status text, queue text, priority smallint, partition_key text,
  unique_key bytea, awaits text[], attempt bigint, crashes int, claims bigint, seq bigint, last_error text, locked_by text,
  parent_id bigint, children_pending int, eligible_at timestamptz, await_deadline timestamptz, inserted_at timestamptz,
  updated_at timestamptz, finished_at timestamptz, state jsonb, result jsonb, metadata jsonb, blocked_on text,
  due_at timestamptz, error_type text, last_traceback text, token_at timestamptz, rate_key text, children_needed int,
  step_errors int, postponements smallint, started_at timestamptz
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
  return query select * from @schema.instances_of(array[coalesce(instance, @schema.id_of_key(key))], true);
end
$$;

comment on function @schema.get(bigint, bytea) is
  'Returns one instance by id, or by unique key: select status, step from gen_durable.get(42).';
