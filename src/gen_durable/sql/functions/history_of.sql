-- history_of: the committed outcomes of an instance, in order.
--
-- Parameters: an id or, where that is null, a unique key; last, return only that many of the latest (null for all).
-- Errors and states are null for a login that may not read them (may_read.sql).
-- Index: primary key of transitions; instances_unique. Locks: none.
create or replace function @schema.history_of(instance bigint, key bytea default null, last int default null)
returns table (
  seq int, step text, outcome text, next_step text, attempt int, started_at timestamptz, duration float8, worker text,
  error text, state jsonb
)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select h.* from (
    select t.seq, t.step, t.outcome, t.next_step, t.attempt, t.started_at, t.duration, t.worker,
      case when (select @schema.may_read('state')) then t.error end as error,
      case when (select @schema.may_read('state')) then t.state end as state
    from @schema.transitions t
    where t.instance_id = coalesce(instance, (select i.id from @schema.instances i where i.unique_guard = key))
    order by t.seq desc
    limit last
  ) as h
  order by h.seq
$$;
