-- history_of: the history of an instance, in order: its committed outcomes, and its cancels, retries and crashes.
--
-- Parameters: an id or, where that is null, a unique key (id_of_key.sql); last, return only that many of the latest
-- (null for all). Errors, tracebacks and states are null for a login that may not read them (may_read_column.sql).
-- What happened without an outcome has the seq of the outcome before it, and comes after it.
-- Index: primary keys; instances_unique, instances_key. Locks: none.
create or replace function @schema.history_of(instance bigint, key bytea default null, last int default null)
returns table (
  seq bigint, step text, outcome text, next_step text, attempt bigint, started_at timestamptz, duration float8,
  waited float8, cause text, worker text, error text, error_type text, traceback text, state jsonb
)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select
    latest.seq, latest.step, latest.outcome, latest.next_step, latest.attempt, latest.started_at, latest.duration,
    latest.waited, latest.cause, latest.worker, case when latest.may_read then latest.error end, latest.error_type,
    case when latest.may_read then latest.traceback end, case when latest.may_read then latest.state end
  from (
    select transition.*, (select @schema.may_read_column('state')) as may_read
    from @schema.transitions_of(coalesce(instance, (select @schema.id_of_key(key))), last) as transition
    order by transition.seq desc, transition.n desc
    limit last
  ) as latest
  order by latest.seq, latest.n
$$;

comment on function @schema.history_of(bigint, bytea, int) is
  'Returns the history of an instance, in order: select * from gen_durable.history_of(42).';
