-- Baseline: every type, table and index of the schema; 0006_keys_and_retention.sql is its second part.
--
-- Its version is 6 because unreleased versions have used 1 to 5 for other layouts: the numbers keep them apart
-- (pg/installed_schema.py), and a library of the old layout refuses this schema as too new.
--
-- Functions and triggers are in functions/ and are installed after each migration. A comment at an index names the
-- functions that need it. The meaning of tables and columns is in COMMENTs, so that psql shows it (\d+).

create schema if not exists @schema;

create table @schema.migrations (
  version     int primary key,
  applied_at  timestamptz not null default now()
);
comment on table @schema.migrations is 'One row per applied version of the schema. Written by gen-durable migrate.';

create type @schema.durable_status as enum (
  'runnable', 'executing', 'awaiting_signal', 'awaiting_children', 'done', 'failed', 'cancelled'
);

-- Columns of fixed width come first: Postgres finds them at a constant offset, without reading the ones before.
--
-- No CHECKs: Postgres parses the text of each one again in every statement that writes a row. Functions check what comes
-- from outside (require_valid_starts.sql).
--
-- parent_id has no foreign key: it would lock the parent for every inserted child, and search for children for every
-- row that gc deletes. A child never outlives the barrier of its parent (gc.sql), so no reader meets a dangling id.
create table @schema.instances (
  id                bigint generated always as identity primary key,
  parent_id         bigint,
  inserted_at       timestamptz not null default now(),
  updated_at        timestamptz not null default now(),
  -- Moments that Python can read, none of them infinite: Postgres before 17 cannot compute with infinity, so one such
  -- row would fail every pick of its queue (require_valid_starts.sql).
  eligible_at       timestamptz not null default now(),
  await_deadline    timestamptz,
  lease_expires_at  timestamptz,
  started_at        timestamptz,
  finished_at       timestamptz,
  -- One column for runnable rows and for waiting rows with a deadline, so that one index and one comparison serve both.
  due_at            timestamptz generated always as (
    case
      when blocked_on is not null        then null
      when status = 'runnable'           then coalesce(token_at, eligible_at)
      when status = 'awaiting_signal'    then coalesce(token_at, await_deadline)
      when status = 'awaiting_children'  then coalesce(token_at, await_deadline)
    end
  ) stored,
  token_at          timestamptz,
  keep_seconds      float8,
  -- Counters that grow for ever: at 500 wake-ups a second an int overflows in 50 days.
  attempt           bigint not null default 0,
  claims            bigint not null default 0,
  seq               bigint not null default 0,
  visit             bigint not null default 0,
  round             bigint not null default 0,
  parent_round      bigint,
  timed_out_claim   bigint,
  fsm_version       int not null default 1,
  step_errors       int not null default 0,
  crashes           int not null default 0,
  children_pending  int not null default 0,
  children_needed   int,
  status            @schema.durable_status not null default 'runnable',
  priority          smallint not null default 0,
  postponements     smallint not null default 0,
  has_signals       boolean not null default false,
  has_journal       boolean not null default false,
  joined            boolean not null default false,
  claimed_ahead     boolean not null default false,
  fsm               text not null,
  step              text not null,
  queue             text not null default 'default',
  partition_key     text,
  slot_key          text collate "C",
  rate_key          text collate "C",
  weight            int,
  inserted_by       oid,
  blocked_on        text collate "C",
  group_key         text collate "C",
  locked_by         text,
  last_error        text,
  error_type        text,
  last_traceback    text,
  cancel_reason     text,
  on_failure        text,
  cancel_rest       boolean,
  awaits            text[],
  seen              bigint[],
  state             jsonb not null default '{}',
  result            jsonb,
  unique_key        bytea,
  unique_scope      @schema.durable_status[] not null default '{}',
  -- The key while the status is in the scope. The update that takes a row out of its scope also empties the scope, so a
  -- row never takes its guard a second time and no transition can collide.
  unique_guard      bytea generated always as (
    case when unique_key is not null and status = any (unique_scope) then unique_key end
  ) stored,
  metadata          jsonb,
  history           text  -- the last column: older lines cost no WAL then (append_to_history.sql)
)
with (
  fillfactor = 60,                          -- space for the updates of a chain on the row's own page (HOT)
  autovacuum_vacuum_scale_factor = 0.02,    -- a queue has many dead rows, all of them young
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0.1,
  autovacuum_analyze_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0
);
-- Other columns are moved out of a large row before this one: every outcome reads it.
alter table @schema.instances alter column history set storage main;
comment on table @schema.instances is 'One row per instance of a machine or job.';
comment on column @schema.instances.parent_id is 'The instance that started this one.';
comment on column @schema.instances.eligible_at is 'From when on a runnable row may be picked.';
comment on column @schema.instances.await_deadline is
  'When a waiting row is woken without a signal or its children. Kept as long as awaits.';
comment on column @schema.instances.started_at is 'When a worker first claimed the instance; null until then.';
comment on column @schema.instances.finished_at is 'When the instance ended. Retention counts from here.';
comment on column @schema.instances.due_at is
  'From when on the row may be picked, whatever its status; null if it may not be picked.';
comment on column @schema.instances.token_at is
  'When a token of the rate limit is expected, for a row that was refused one.';
comment on column @schema.instances.fsm is 'The name of the machine or job.';
comment on column @schema.instances.attempt is 'Executions of the current step that did not lead on from it.';
comment on column @schema.instances.step_errors is
  'Retries of the current step because it raised; crashes are not counted. Limits the attempts of a job.';
comment on column @schema.instances.claims is
  'The fencing number (epoch) of the newest claim. Raised by each claim and by each change that ends a claim from outside.';
comment on column @schema.instances.seq is 'The number of committed outcomes.';
comment on column @schema.instances.visit is
  'The seq with which the instance entered its step; the same for all retries of the step.';
comment on column @schema.instances.crashes is 'Claims whose worker died or lost its lease, since the last outcome.';
comment on column @schema.instances.claimed_ahead is
  'Claimed before a slot was free: if its worker dies, it may not have begun. Stays until the next claim or outcome.';
comment on column @schema.instances.postponements is
  'How often a worker returned the row because it could not run it, since the last outcome.';
comment on column @schema.instances.children_pending is 'Children of the current round that have not ended.';
comment on column @schema.instances.children_needed is
  'How many more children must be done before the parent continues; null if all must end.';
comment on column @schema.instances.round is 'The number of fan-outs of this instance.';
comment on column @schema.instances.parent_round is 'The round of the parent to which this child belongs.';
comment on column @schema.instances.priority is 'A lower number is picked first.';
comment on column @schema.instances.has_signals is
  'Whether a signal was ever delivered; without one, pick and the end of the instance skip the inbox.';
comment on column @schema.instances.has_journal is
  'Whether a checkpoint, an activity or progress was ever written; without one, pick skips the journal.';
comment on column @schema.instances.joined is 'Whether its children have woken it: the claim then carries their results.';
comment on column @schema.instances.timed_out_claim is
  'The number of the claim that its deadline caused; kept until the woken step progresses. Null if none has.';
comment on column @schema.instances.slot_key is 'The concurrency limit of the step: NAME or NAME/PARTITION.';
comment on column @schema.instances.rate_key is 'The rate limit of the step: NAME or NAME/PARTITION.';
comment on column @schema.instances.weight is 'The number of tokens of the rate limit that one execution takes; null for 1.';
comment on column @schema.instances.blocked_on is
  'The gate that the row waits for: partition/KEY, slot/KEY or rate/KEY.';
comment on column @schema.instances.group_key is 'The group of the row in a fair queue: KIND/GROUP.';
comment on column @schema.instances.locked_by is 'The worker that has claimed the row.';
comment on column @schema.instances.error_type is 'The class of the exception behind last_error, or CrashLoop.';
comment on column @schema.instances.last_traceback is 'The traceback of that exception: frames without values.';
comment on column @schema.instances.cancel_reason is
  'Set while the row executes and a cancel is requested: its next outcome ends it.';
comment on column @schema.instances.on_failure is
  'What the first failed child does: wake the parent, or also cancel the other children; null: the parent waits for all.';
comment on column @schema.instances.cancel_rest is 'Whether children that the parent stops waiting for are cancelled.';
comment on column @schema.instances.awaits is
  'The names of the signals it waits for, kept until the woken step progresses, and by failed and cancelled rows.';
comment on column @schema.instances.seen is 'The ids of the signals that the waiting step had already received.';
comment on column @schema.instances.inserted_by is
  'The oid of the login that inserted the row, in a database with roles (roles.sql).';
comment on column @schema.instances.unique_scope is 'The statuses in which the row holds its unique key.';
comment on column @schema.instances.metadata is
  'A JSON object of the user, to find instances by; the engine does not read it. Indexed by migrate --metadata-index.';
comment on column @schema.instances.history is
  'Its newest outcomes, packed (append_to_history.sql); history_of reads them. Null if none was recorded.';

-- pick: the due rows of one queue and priority, in order. Rows that cannot run are not in it.
create index instances_pick on @schema.instances (queue, priority, due_at, id) where due_at is not null;

-- reap: claims by the end of their lease.
create index instances_lease on @schema.instances (lease_expires_at) where status = 'executing';

-- admit_or_block_rows_by_partition: at most one claim per partition key. The locks of pick prevent a conflict; the index
-- proves it.
create unique index instances_partition on @schema.instances (partition_key)
  where status = 'executing' and partition_key is not null;

-- admit_or_block_rows_by_partition, unblock: the first row of a partition key among those that may be picked, which keeps
-- its order.
create index instances_partition_order on @schema.instances (partition_key, priority, due_at, id)
  where due_at is not null and partition_key is not null;

-- admit_or_block_rows_by_partition, unblock: the first row that waits for a partition key; unblock_missed_rows: all gates
-- with waiting rows.
create index instances_blocked on @schema.instances (blocked_on, priority, eligible_at, id)
  where blocked_on is not null;

-- admit_or_block_rows_by_partition, unblock: the row that a partition key has admitted and that now waits for a limit; no
-- other row of the key may overtake it.
create index instances_partition_admitted on @schema.instances (partition_key)
  where partition_key is not null and (token_at is not null or not starts_with(blocked_on, 'partition/'));

-- unblock: the rows that wait for a limit, by queue.
create index instances_limited on @schema.instances (blocked_on, queue, priority, eligible_at, id)
  where not starts_with(blocked_on, 'partition/');

-- admit_or_block_rows_by_limit, unblock: how many rows of a concurrency limit execute (slot), and how many may be picked
-- (slot_due). slot_due wraps due_at in coalesce: with the plain column instances_pick would fit as well, and a planner with
-- statistics of an empty queue takes that one and reads all of it (tests/store/test_plans_limits.py).
create index instances_slot on @schema.instances (slot_key) where status = 'executing' and slot_key is not null;
create index instances_slot_due on @schema.instances (slot_key, queue, coalesce(due_at, 'infinity'))
  where slot_key is not null and coalesce(due_at, 'infinity') < 'infinity';

-- admit_or_block_rows_by_limit: rows of a rate limit that have not been refused a token yet; due_at is wrapped as above.
create index instances_rate_due on @schema.instances (rate_key, coalesce(due_at, 'infinity'))
  where rate_key is not null and token_at is null and coalesce(due_at, 'infinity') < 'infinity';

-- unblock, set_limit: the rows that wait for their token, by the time at which it is expected.
create index instances_token_due on @schema.instances (rate_key, queue, token_at) where token_at is not null;

-- lock_fair_rows: the groups of a fair queue.
create index instances_group on @schema.instances (queue, priority, group_key, due_at, id)
  where due_at is not null and group_key is not null;

-- insert, signal: at most one instance holds a unique key.
create unique index instances_unique on @schema.instances (unique_guard) where unique_guard is not null;

-- children_of_claim, children_page: the children of a round, in the order of their start.
create index instances_parent on @schema.instances (parent_id, parent_round, id) where parent_id is not null;

-- The transaction that ends a parent, or opens its barrier early, inserts a row here; cancel_listed_descendants cancels the
-- children afterwards, a batch at a time. A call in the caller's transaction must not lock gates: it leaves them here as
-- well.
create table @schema.cascades (
  id             bigint generated always as identity primary key,
  parent_id      bigint,
  first_round    bigint,
  last_round     bigint,
  after          bigint not null default 0,
  origin         bigint not null,
  reason         text not null,
  gates          text[],
  inserted_at    timestamptz not null default now(),
  visited_at     timestamptz not null default now(),
  first_skipped  bigint
);
comment on table @schema.cascades is 'Pending work of cancel_listed_descendants: children to cancel and gates to unblock.';
comment on column @schema.cascades.parent_id is 'The parent whose children are cancelled; null if there are only gates.';
-- A retried parent begins a new round, so the cascade leaves its new children alone (tests/interleavings: spawn_cascade).
comment on column @schema.cascades.first_round is 'The first round of the parent whose children are cancelled.';
comment on column @schema.cascades.last_round is 'The last round of the parent whose children are cancelled.';
comment on column @schema.cascades.after is 'Children up to this id have been visited.';
comment on column @schema.cascades.visited_at is 'The last visit; the entry that was visited longest ago is next.';
comment on column @schema.cascades.first_skipped is 'The first child that was skipped: the next walk starts there.';
comment on column @schema.cascades.origin is 'The instance that was cancelled, or whose barrier opened early.';
comment on column @schema.cascades.gates is 'Gates freed by a call in the caller''s transaction.';

-- cancel_listed_descendants: the pending work, and that of one origin, in the order of visits.
create index cascades_visited on @schema.cascades (visited_at, id);
create index cascades_origin on @schema.cascades (origin, visited_at, id);

create table @schema.limits (
  name        text collate "C" primary key check (name <> '' and name !~ '/'),
  kind        text not null check (kind in ('concurrency', 'rate')),
  slots       int check (slots >= 1),
  period      float8 check (period > 0),
  burst       int check (burst >= 1),
  declared    jsonb,
  updated_at  timestamptz not null default now(),
  check ((kind = 'concurrency') = (slots is not null)),
  check ((kind = 'rate') = (period is not null and burst is not null)),
  check (period * burst <= 3.2e9)             -- a bucket refills within a hundred years: timestamps cannot overflow
);
comment on table @schema.limits is 'One row per limit. Each partition of a limit has its own slots or tokens.';
comment on column @schema.limits.slots is 'Of a concurrency limit: how many steps execute at a time.';
comment on column @schema.limits.period is 'Of a rate limit: the seconds between two tokens.';
comment on column @schema.limits.burst is 'Of a rate limit: how many tokens a full bucket holds.';
comment on column @schema.limits.declared is 'The limit as a worker has last declared it in code.';

-- admit_or_block_rows_by_limit locks and updates the row of each bucket it takes tokens from.
create table @schema.rate_buckets (
  key            text collate "C" primary key,
  drained_until  timestamptz not null
)
with (fillfactor = 50);
comment on table @schema.rate_buckets is
  'One row per rate limit, or per partition of one, that is not known to be full. A missing row is a full bucket.';
comment on column @schema.rate_buckets.drained_until is 'When the bucket is full again.';

create table @schema.step_slots (
  ticket       bigint primary key,
  id           bigint generated always as identity,
  slot_key     text collate "C" not null,
  instance_id  bigint not null,
  claim        bigint not null
);
comment on table @schema.step_slots is
  'Slots of concurrency limits acquired inside steps (ctx.limit), and requests that wait for one, in order of arrival.';
comment on column @schema.step_slots.ticket is 'Chosen by the caller, so that a repeated call finds its own row.';
comment on column @schema.step_slots.claim is
  'The fencing number of the claim that acquires the slot. The row counts while that claim is current.';

-- acquire_step_limit, count_taken_slots: the slots of a limit, in order of arrival.
create index step_slots_key on @schema.step_slots (slot_key, id);

-- reap: the slots of claims whose lease has expired.
create index step_slots_instance on @schema.step_slots (instance_id);

-- Most outcomes are in instances.history only, which costs neither a row nor an index entry (ADR 31). delete_journal_trg
-- deletes the rows with their instance.
--
-- n tells apart the rows of one seq: 0 for an outcome; for what happened after that outcome without one of its own (a
-- cancel while it waited, a retry, a crash) the value of claims, which each of them raises under the lock of the row.
create table @schema.transitions (
  instance_id  bigint not null,
  started_at   timestamptz not null,
  duration     float8 not null,
  seq          bigint not null,
  attempt      bigint not null,
  n            bigint not null default 0,
  waited       float8 not null default 0,
  step         text not null,
  outcome      text not null,
  cause        text not null default 'next',
  next_step    text,
  worker       text,
  error        text,
  error_type   text,
  traceback    text,
  state        jsonb,
  earlier      text,
  primary key (instance_id, seq, n)
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
comment on table @schema.transitions is 'The part of the history that is not in instances.history: outcomes with an error or a state, older ones, and what '
  'happened without an outcome. history_of returns all of it.';
comment on column @schema.transitions.duration is 'Seconds.';
comment on column @schema.transitions.n is '0 for an outcome; else the value of claims after the cancel, retry or crash.';
comment on column @schema.transitions.waited is 'Seconds between becoming due and being started.';
comment on column @schema.transitions.cause is
  'What made the execution run: start, next, signal, deadline, children, retry, crash or operator; of a cancel, operator '
  'or parent.';
comment on column @schema.transitions.earlier is 'Outcomes before this one, packed as in instances.history.';
comment on column @schema.transitions.outcome is 'The name of the outcome in code: Next, Retry, Await and so on.';
comment on column @schema.transitions.next_step is 'Null if the instance ended.';
comment on column @schema.transitions.state is 'The state after the outcome, for machines with history="states".';

create table @schema.checkpoints (
  instance_id  bigint primary key,
  updated_at   timestamptz not null default now(),
  visit        bigint not null,
  version      bigint not null,
  format       int not null,
  value        jsonb not null
)
with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
comment on table @schema.checkpoints is 'The newest checkpoint of each instance.';
comment on column @schema.checkpoints.visit is 'The visit that wrote it; later visits ignore it.';
comment on column @schema.checkpoints.version is 'The number of checkpoints written in this visit.';
comment on column @schema.checkpoints.format is 'The format of the row: a worker refuses one that it does not know.';

create table @schema.activities (
  instance_id  bigint not null,
  started_at   timestamptz not null,
  duration     float8 not null,
  visit        bigint not null,
  n            int not null,
  attempt      int not null,
  step         text not null,
  name         text not null check (name <> ''),
  parameters   jsonb not null,
  result       jsonb,
  error        text,
  primary key (instance_id, visit, n)
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
comment on table @schema.activities is 'One row per ended call of an activity (ctx.run).';
comment on column @schema.activities.duration is 'Seconds.';
comment on column @schema.activities.n is 'The number of the call within its visit, in the order of the starts.';
comment on column @schema.activities.attempt is 'How often the same name was called before in this visit.';
comment on column @schema.activities.error is 'Null if the call succeeded: it is then not repeated.';

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
with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
comment on table @schema.progress is 'The progress that a step last reported, one row per branch.';
