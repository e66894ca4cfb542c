-- transitions_of: the history of an instance, in order: rows of transitions, and outcomes that are packed.
--
-- Parameters: an id; last, at least so many of the latest (null for all): a row holds one outcome or more.
-- A full text of the row (append_to_history.sql) is in `earlier` of a row of transitions. An outcome that is in both forms
-- is returned as its row, which has more columns.
-- Index: primary keys. Locks: none. Guarded by tests/store/test_history.py.
create or replace function @schema.transitions_of(instance bigint, last int default null)
returns table (
  seq bigint, n bigint, step text, outcome text, next_step text, attempt bigint, started_at timestamptz, duration float8,
  waited float8, cause text, worker text, error text, error_type text, traceback text, state jsonb
)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  with recorded as materialized (
    select * from @schema.transitions transition
    where transition.instance_id = instance
    order by transition.instance_id desc, transition.seq desc, transition.n desc
    limit last
  ),
  packed as (
    select * from @schema.packed_outcomes line
    where line.instance_id = instance and not line.is_copied
      and (line.recorded_seq is null or line.recorded_seq >= (select min(recorded.seq) from recorded))
  )
  select
    recorded.seq, recorded.n, recorded.step, recorded.outcome, recorded.next_step, recorded.attempt, recorded.started_at,
    recorded.duration, recorded.waited, recorded.cause, recorded.worker, recorded.error, recorded.error_type,
    recorded.traceback, recorded.state
  from recorded
  union all
  select
    packed.seq, 0, packed.step, packed.outcome, packed.next_step, packed.attempt, packed.started_at, packed.duration,
    packed.waited, packed.cause, packed.worker, null, null, null, null
  from packed where not exists (select from recorded where recorded.seq = packed.seq and recorded.n = 0)
  order by 1, 2
$$;
