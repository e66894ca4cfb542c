-- history_of: the committed outcomes of an instance, in order.
--
-- Parameters: an id or, where that is null, a unique key (id_of_key.sql); last, return only that many of the latest
-- (null for all). Errors, tracebacks and states are null for a login that may not read them (may_read_column.sql).
-- Index: primary key of transitions; instances_unique, instances_key. Locks: none.
create or replace function @schema.history_of(instance bigint, key bytea default null, last int default null)
returns table (
  seq bigint, step text, outcome text, next_step text, attempt bigint, started_at timestamptz, duration float8, worker text,
  error text, error_type text, traceback text, state jsonb
)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select latest.* from (
    select transition.seq, transition.step, transition.outcome, transition.next_step, transition.attempt,
      transition.started_at, transition.duration, transition.worker,
      case when (select @schema.may_read_column('state')) then transition.error end as error, transition.error_type,
      case when (select @schema.may_read_column('state')) then transition.traceback end as traceback,
      case when (select @schema.may_read_column('state')) then transition.state end as state
    from @schema.transitions transition
    where transition.instance_id = coalesce(instance, (select @schema.id_of_key(key)))
    order by transition.seq desc
    limit last
  ) as latest
  order by latest.seq
$$;

comment on function @schema.history_of(bigint, bytea, int) is
  'Returns the committed outcomes of an instance, in order: select * from gen_durable.history_of(42).';
