-- The tables. Version 1 of the schema.

create type @schema.durable_status as enum (
  'runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed', 'cancelled'
);

-- One row per instance.
create table @schema.gen_durable (
  id                bigint generated always as identity primary key,
  parent_id         bigint,               -- the instance that started this one; no foreign key: see below
  inserted_at       timestamptz not null default now(),
  updated_at        timestamptz not null default now(),
  eligible_at       timestamptz not null default now(),  -- when a runnable row may be picked
  await_deadline    timestamptz,          -- when a parked row is woken although nothing came
  lease_expires_at  timestamptz,
  finished_at       timestamptz,          -- set once, on a terminal outcome; retention counts from here
  -- When the row may be picked, whatever it waits for: one column, so that one index and one comparison serve
  -- runnable rows and parked rows with a deadline alike. Null: not to be picked.
  due_at            timestamptz generated always as (
    case
      when blocked_on is not null        then null
      when status = 'runnable'           then eligible_at
      when status = 'awaiting_signal'    then await_deadline
      when status = 'awaiting_children'  then await_deadline
    end
  ) stored,
  fsm_version       int not null default 1,
  attempt           int not null default 0,   -- executions of the current step that did not get past it
  claims            int not null default 0,   -- + 1 on every claim, and on every exit that is not the owner's outcome
  seq               int not null default 0,   -- + 1 on every committed outcome
  crashes           int not null default 0,   -- claims without an outcome since the last progress
  children_pending  int not null default 0 check (children_pending >= 0),
  round             int not null default 0,   -- + 1 on every fan-out; children carry the round they belong to
  parent_round      int,
  status            @schema.durable_status not null default 'runnable',
  priority          smallint not null default 0,  -- lower is earlier
  inbox             boolean not null default false,  -- a signal was delivered at some time: pick and the end look there
  joined            boolean not null default false,  -- woken by its children: the claim brings them along
  fsm               text not null check (fsm <> ''),
  step              text not null check (step <> ''),
  queue             text not null default 'default' check (queue <> ''),
  partition_key     text check (partition_key <> ''),
  blocked_on        text,                 -- the gate that it waits for: 'partition/KEY'
  locked_by         text,
  last_error        text,
  awaits            text[],               -- the names waited for; kept until the woken step progresses
  seen              bigint[],             -- the signals that the parking step had been shown already
  state             jsonb not null default '{}',
  result            jsonb,
  unique_key        bytea check (unique_key <> ''),
  unique_scope      @schema.durable_status[] not null default '{}',
  -- The key while the status is in the scope. A row that leaves its scope has the scope emptied by the same update,
  -- so a guard is never taken again: a transition cannot collide.
  unique_guard      bytea generated always as (
    case when unique_key is not null and status = any (unique_scope) then unique_key end
  ) stored
)
with (
  fillfactor = 60,                          -- room for a whole batch of a chain's updates on their own page (HOT)
  autovacuum_vacuum_scale_factor = 0.02,    -- a queue's dead rows are many and young
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0.1,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);

-- parent_id has no foreign key: it would lock the parent row for every child inserted, and look for children at every
-- row that retention deletes. A child never outlives its parent's barrier (gc.sql), so nothing dangles that is read.

-- pick.sql: due rows of one queue and priority, in order. Rows that cannot run are not in it.
create index gen_durable_pick on @schema.gen_durable (queue, priority, due_at, id) where due_at is not null;

-- reap.sql: claims by the end of their lease.
create index gen_durable_lease on @schema.gen_durable (lease_expires_at) where status = 'executing';

-- admit.sql: at most one claim per partition key. The arbiter of last resort; nobody ever runs into it.
create unique index gen_durable_partition on @schema.gen_durable (partition_key)
  where status = 'executing' and partition_key is not null;

-- admit.sql, hand_over.sql: the head of a partition key among the rows that may be picked, so that order holds in it.
create index gen_durable_partition_order on @schema.gen_durable (partition_key, priority, due_at, id)
  where due_at is not null and partition_key is not null;

-- admit.sql, hand_over.sql: the head among those that wait for a key.
create index gen_durable_blocked on @schema.gen_durable (blocked_on, priority, eligible_at, id)
  where blocked_on is not null;

-- insert.sql, signal.sql: one holder of a key.
create unique index gen_durable_unique on @schema.gen_durable (unique_guard) where unique_guard is not null;

-- children_of.sql, children_page.sql: the children of a round, in the order they were started.
create index gen_durable_parent on @schema.gen_durable (parent_id, parent_round, id) where parent_id is not null;

-- gc.sql: ended rows by age.
create index gen_durable_finished on @schema.gen_durable (finished_at) where finished_at is not null;

-- The inbox of each instance.
create table @schema.signals (
  id           bigint generated always as identity primary key,
  target_id    bigint not null,  -- no foreign key: forget_signals.sql
  inserted_at  timestamptz not null default now(),
  -- A consumed signal with a dedup key stays, emptied, until its instance ends: a second delivery must still be known.
  consumed     boolean not null default false,
  name         text not null check (name <> ''),
  payload      jsonb,
  dedup_key    text check (dedup_key <> ''),
  unique (target_id, dedup_key)
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- pick.sql, flush.sql: what an instance has been sent and has not consumed.
create index signals_inbox on @schema.signals (target_id, id) where not consumed;
