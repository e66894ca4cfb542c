-- The tables. Version 1 of the schema.

create type @schema.durable_status as enum (
  'runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed', 'cancelled'
);

-- One row per instance.
create table @schema.instances (
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
      when status = 'runnable'           then coalesce(token_at, eligible_at)
      when status = 'awaiting_signal'    then coalesce(token_at, await_deadline)
      when status = 'awaiting_children'  then coalesce(token_at, await_deadline)
    end
  ) stored,
  token_at          timestamptz,          -- when a token of its rate limit is expected, if it was refused one
  fsm_version       int not null default 1,
  attempt           int not null default 0,   -- executions of the current step that did not get past it
  claims            int not null default 0,   -- + 1 on every claim, and on every exit that is not the owner's outcome
  seq               int not null default 0,   -- + 1 on every committed outcome
  visit             int not null default 0,   -- the seq with which it came to its step; the same while that is tried again
  crashes           int not null default 0,   -- claims without an outcome since the last progress
  children_pending  int not null default 0 check (children_pending >= 0),  -- it waits for, not ended
  children_needed   int,                  -- so many more of them must be done for it to go on; null: all must end
  round             int not null default 0,   -- + 1 on every fan-out; children carry the round they belong to
  parent_round      int,
  status            @schema.durable_status not null default 'runnable',
  priority          smallint not null default 0,  -- lower is earlier
  has_signals       boolean not null default false,  -- a signal was delivered at some time: pick and the end look there
  has_journal       boolean not null default false,  -- a checkpoint, activity or progress was written at some time
  joined            boolean not null default false,  -- woken by its children: the claim brings them along
  fsm               text not null check (fsm <> ''),
  step              text not null check (step <> ''),
  queue             text not null default 'default' check (queue <> ''),
  partition_key     text check (partition_key <> ''),
  slot_key          text collate "C",     -- the concurrency limit of its step: 'NAME' or 'NAME/PARTITION'
  rate_key          text collate "C",     -- the rate limit of its step, likewise
  weight            int,                  -- how many tokens of the rate limit it takes; null: 1
  blocked_on        text collate "C",     -- the gate that it waits for: 'partition/KEY', 'slot/KEY' or 'rate/KEY'
  group_key         text collate "C",     -- whose turn it is in a fair queue: 'KIND/GROUP'
  locked_by         text,
  last_error        text,
  cancel_reason     text,                 -- executing, and to be cancelled: no outcome leads on from here
  on_failure        text check (on_failure in ('wake', 'cancel_rest')),  -- of a child it waits for; null: wait
  cancel_rest       boolean,              -- children that it stops waiting for are to be cancelled
  awaits            text[],               -- the names waited for; kept until the woken step progresses
  seen              bigint[],             -- the signals that the parking step had been shown already
  inserted_by       text,                 -- the login that started it, if that may read no others (roles.sql)
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
create index instances_pick on @schema.instances (queue, priority, due_at, id) where due_at is not null;

-- reap.sql: claims by the end of their lease.
create index instances_lease on @schema.instances (lease_expires_at) where status = 'executing';

-- admit_partitions.sql: at most one claim per partition key. The arbiter of last resort; nobody ever runs into it.
create unique index instances_partition on @schema.instances (partition_key)
  where status = 'executing' and partition_key is not null;

-- admit_partitions.sql, unblock.sql: the head of a partition key among the rows that may be picked, so that order holds in it.
create index instances_partition_order on @schema.instances (partition_key, priority, due_at, id)
  where due_at is not null and partition_key is not null;

-- admit_partitions.sql, unblock.sql: the head among those that wait for a partition key; unblock_missed.sql: all gates.
create index instances_blocked on @schema.instances (blocked_on, priority, eligible_at, id)
  where blocked_on is not null;

-- admit_partitions.sql, unblock.sql: whom a partition key has let go on to a limit: nobody of the key overtakes it.
create index instances_partition_admitted on @schema.instances (partition_key)
  where partition_key is not null and (token_at is not null or not starts_with(blocked_on, 'partition/'));

-- unblock.sql: those that wait for a limit, by queue.
create index instances_limited on @schema.instances (blocked_on, queue, priority, eligible_at, id)
  where not starts_with(blocked_on, 'partition/');

-- admit_limits.sql, unblock.sql: how many of a concurrency limit execute, and how many may be picked. The latter says due_at in
-- other words: asked for plainly, the rows of a limit are also in instances_pick, and a planner who knows of no due rows
-- thinks that as good and reads all of it.
create index instances_slot on @schema.instances (slot_key) where status = 'executing' and slot_key is not null;
create index instances_slot_due on @schema.instances (slot_key, queue, coalesce(due_at, 'infinity'))
  where slot_key is not null and coalesce(due_at, 'infinity') < 'infinity';

-- admit_limits.sql: rows of a rate limit that have not asked yet; due_at as above.
create index instances_rate_due on @schema.instances (rate_key, coalesce(due_at, 'infinity'))
  where rate_key is not null and token_at is null and coalesce(due_at, 'infinity') < 'infinity';

-- unblock.sql, set_limit.sql: those that were told when their token is expected.
create index instances_token_due on @schema.instances (rate_key, queue, token_at) where token_at is not null;

-- pick_fair.sql: the groups of a fair queue.
create index instances_group on @schema.instances (queue, priority, group_key, due_at, id)
  where due_at is not null and group_key is not null;

-- insert.sql, signal.sql: one holder of a key.
create unique index instances_unique on @schema.instances (unique_guard) where unique_guard is not null;

-- children_of.sql, children_page.sql: the children of a round, in the order they were started.
create index instances_parent on @schema.instances (parent_id, parent_round, id) where parent_id is not null;

-- gc.sql: ended rows by age.
create index instances_finished on @schema.instances (finished_at) where finished_at is not null;

-- cascade.sql: whose children are to be cancelled. Whoever ends a parent, or opens a barrier early, writes it down in the
-- same transaction; it is carried out afterwards, some children at a time, by whoever comes first. Gates that a guest must
-- not lock are left here too.
create table @schema.cascades (
  id           bigint generated always as identity primary key,
  parent_id    bigint,                    -- null: there are only gates to be handed over
  first_round  int,                       -- of which rounds. A parent that is tried again begins a round that is none of
  last_round   int,                       -- these: its children are left alone (tests/interleavings: spawn_cascade)
  after        bigint not null default 0, -- children up to this id are dealt with
  origin       bigint not null,           -- the instance that somebody has cancelled, or whose barrier it is
  reason       text not null,
  gates        text[],
  inserted_at  timestamptz not null default now()
);
create index cascades_origin on @schema.cascades (origin);

-- The inbox of each instance.
create table @schema.signals (
  id           bigint generated always as identity primary key,
  target_id    bigint not null,  -- no foreign key: delete_signals_trg.sql
  inserted_at  timestamptz not null default now(),
  -- A consumed signal with a dedup key stays, emptied, until its instance ends: a second delivery must still be known.
  consumed     boolean not null default false,
  name         text not null check (name <> ''),
  payload      jsonb,
  dedup_key    text check (dedup_key <> '')
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- signal.sql: one delivery per dedup key. Most signals have none and are not in it: an index less to go down.
create unique index signals_dedup on @schema.signals (target_id, dedup_key) where dedup_key is not null;

-- pick.sql, flush.sql: what an instance has been sent and has not consumed, in order. The emptied ones lie apart, so
-- that an inbox is read without them; they are here to be found when the instance ends.
create index signals_inbox on @schema.signals (target_id, consumed, id);

-- The policies of limits, by name. A limit may be partitioned: then each partition has its own slots or tokens.
create table @schema.limits (
  name        text collate "C" primary key check (name <> '' and name !~ '/'),
  kind        text not null check (kind in ('concurrency', 'rate')),
  slots       int check (slots >= 1),         -- concurrency: so many execute at a time
  period      float8 check (period > 0),      -- rate: a token every so many seconds,
  burst       int check (burst >= 1),         -- and so many at once after a rest
  declared    jsonb,                          -- what a worker's code has declared last
  updated_at  timestamptz not null default now(),
  check ((kind = 'concurrency') = (slots is not null)),
  check ((kind = 'rate') = (period is not null and burst is not null)),
  check (period * burst <= 3.2e9)             -- a bucket is full again within a hundred years: moments must not overflow
);

-- admit_limits.sql: the buckets of rate limits. `drained_until`: when all tokens that were taken will have come back; one that
-- is full again may as well be absent.
create table @schema.rate_buckets (
  key            text collate "C" primary key,
  drained_until  timestamptz not null
)
with (fillfactor = 50);

-- acquire_limit.sql: slots of concurrency limits that steps have asked for from inside, in the order of asking. One counts as
-- long as the claim that has asked lives.
create table @schema.step_slots (
  ticket       bigint primary key,        -- drawn by the asker, so that one who asks again is known
  id           bigint generated always as identity,
  slot_key     text collate "C" not null,
  instance_id  bigint not null,
  claim        int not null
);
create index step_slots_key on @schema.step_slots (slot_key, id);
create index step_slots_instance on @schema.step_slots (instance_id);
