-- The journal: what happened, and work inside a step. Version 2 of the schema.

-- Made anew with more columns in the answer, and more arguments that may be left out: who calls them as before is served.
drop function if exists @schema.pick(text, text[], int[], text[], float8, jsonb, jsonb);
drop function if exists @schema.flush(
  bigint[], int[], int[], text[], text[], jsonb[], float8[], text[], bigint[], jsonb[]
);

-- In a new database they are among the first columns: there they are cheaper to update.
alter table @schema.instances
  add column if not exists visit int not null default 0,
  add column if not exists has_journal boolean not null default false;

-- flush.sql, history_of.sql: one row per committed outcome. No foreign key, no other index: it is written at every step.
-- Rows go with their instance (delete_journal_trg.sql).
create table @schema.transitions (
  instance_id  bigint not null,
  started_at   timestamptz not null,
  duration     float8 not null,       -- seconds
  seq          int not null,
  attempt      int not null,
  step         text not null,
  outcome      text not null,         -- as it is called in code: Next, Retry, Await, ...
  next_step    text,                  -- null: it has ended
  worker       text,
  error        text,
  state        jsonb,                 -- of machines with history="states": the state after the outcome
  primary key (instance_id, seq)
)
with (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_insert_scale_factor = 0.1,
  autovacuum_vacuum_cost_delay = 0
);

-- record_checkpoint.sql, journal_of.sql: the newest checkpoint of an instance. One of an earlier visit counts for nothing.
create table @schema.checkpoints (
  instance_id  bigint primary key,
  updated_at   timestamptz not null default now(),
  visit        int not null,
  version      int not null,          -- so many were written in this visit
  format       int not null,          -- of this row: a worker refuses one that it does not know
  value        jsonb not null
)
with (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- record_activity.sql, journal_of.sql, activities_of.sql: every call of an activity that has ended, in the order they began.
create table @schema.activities (
  instance_id  bigint not null,
  started_at   timestamptz not null,
  duration     float8 not null,       -- seconds
  visit        int not null,
  n            int not null,          -- in the order they began within the visit
  attempt      int not null,          -- how often the same name was called before, in this visit
  name         text not null check (name <> ''),
  parameters   jsonb not null,
  result       jsonb,
  error        text,                  -- null: it is finished, and not called again
  primary key (instance_id, visit, n)
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- record_progress.sql, progress_of.sql: how far each step has come, by its own words.
create table @schema.progress (
  instance_id  bigint not null,
  updated_at   timestamptz not null default now(),
  fraction     float8,
  step         text not null,
  branch       text not null default '',
  message      text,
  detail       jsonb,
  primary key (instance_id, step, branch)
)
with (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- Which installation this is: ids begin at 1 in each, and idempotency keys must not be the same in two of them. And the
-- prefix of its roles, null if it has none (roles.sql).
create table @schema.installation (token text not null, roles text);
insert into @schema.installation (token) values (left(replace(gen_random_uuid()::text, '-', ''), 12));
