-- Baseline, third part: the inboxes.

-- target_id has no foreign key: signals are deleted with their instance by delete_signals_trg.
create table @schema.signals (
  id           bigint generated always as identity primary key,
  target_id    bigint not null,
  inserted_at  timestamptz not null default now(),
  size         int not null default 0,
  consumed     boolean not null default false,
  name         text not null check (name <> ''),
  payload      jsonb,
  dedup_key    text check (dedup_key <> ''),
  rejection    text check (rejection is null or consumed),
  rejected_by  text[]
)
with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
comment on table @schema.signals is 'The inboxes of all instances: one row per delivered signal.';
comment on column @schema.signals.target_id is 'The instance that receives the signal.';
comment on column @schema.signals.size is 'Bytes of the payload as text. An inbox takes a bounded number of them.';
comment on column @schema.signals.consumed is
  'Not in the inbox. A consumed signal with a dedup key stays, without its payload, as long as its instance, to detect a '
  'second delivery; a rejected one is kept with its payload.';
comment on column @schema.signals.rejection is
  'Why no worker could read the payload; null for a signal that is not rejected. Names places and types, never values.';
comment on column @schema.signals.rejected_by is
  'The fingerprints of the definitions that could not read it, the newest first. Kept when it is tried again.';

-- signal: one delivery per dedup key. Most signals have none and do not pay for the index; a rejected signal frees its key.
create unique index signals_dedup on @schema.signals (target_id, dedup_key)
  where dedup_key is not null and rejection is null;

-- pick, flush: the unconsumed signals of an instance, in order. Consumed ones sort apart, so that reading an inbox skips
-- them; delete_signals_trg finds them here when the instance is deleted. signal and inbox_of_claim add up the sizes.
create index signals_inbox on @schema.signals (target_id, consumed, id) include (size);

-- retry_signals_others_rejected, rejected_signals, reject_unreadable_signals: rejected signals, by instance. Empty in most databases.
create index signals_rejected on @schema.signals (target_id, id) where rejection is not null;
