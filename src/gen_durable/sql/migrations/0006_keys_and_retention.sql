-- Baseline, second part: looking up unique keys, ended rows, and retention.

-- id_of_key, filter_sql: the instances that were inserted with a unique key, in order, also those that released it.
create index instances_key on @schema.instances (unique_key, id) where unique_key is not null;

comment on column @schema.instances.keep_seconds is
  'How long the row is kept after its end, whatever the retention: Infinity for good; null for the retention.';

-- gc, filter_sql: ended rows under a retention, by age. Rows with a keep_seconds of their own are apart, so that gc does
-- not walk over them (ADR 24): instances_kept has them by age for filter_sql, instances_keep_passed by the end of their
-- time for gc_rows_with_own_retention (keep_ends_at.sql).
create index instances_finished on @schema.instances (finished_at) where finished_at is not null and keep_seconds is null;
create index instances_kept on @schema.instances (finished_at) where finished_at is not null and keep_seconds is not null;
create index instances_keep_passed
  on @schema.instances (((finished_at at time zone 'UTC') + make_interval(secs => keep_seconds)))
  where finished_at is not null and keep_seconds < 'Infinity';

-- filter_sql: failed and cancelled instances, newest first. Rows that succeed never enter it.
create index instances_ended_badly on @schema.instances (id) where status in ('failed', 'cancelled');

-- filter_sql: the rows that rest in a step, newest first. Jobs and chains that succeed never enter it.
create index instances_parked on @schema.instances (fsm, parked_step, id) where parked_step is not null;

-- gc reads it; declare_retentions writes it.
create table @schema.retentions (
  fsm         text primary key,
  done        float8 check (done between 0 and 3.2e9),  -- a hundred years: timestamps cannot overflow
  failed      float8 check (failed between 0 and 3.2e9),
  cancelled   float8 check (cancelled between 0 and 3.2e9),
  updated_at  timestamptz not null default now()
);
comment on table @schema.retentions is
  'The retention of each machine that declares one, in seconds by the way of ending; null keeps for good.';
