-- retry: let a failed or cancelled instance run again, from the step in which it ended.
--
-- Parameters: an id or, where that is null, a unique key (id_of_key.sql). notify: wake the workers with the commit
-- (notify_workers.sql).
-- Returns one row: its id, its status before and, if it runs again, the queue to wake. Returns no row if it does not
-- exist.
-- A row that waited for a signal when it was cancelled waits again, until its old deadline, unless a signal has come.
-- Any other row runs: its step is given the signals that it had (`seen` is null from the claim of a row until it parks).
-- The error stays until the next progress. A key that was released is not taken again (ADR 2). A parent that still
-- waits for this round waits for the instance again. Children of its last round are passed to the step, as after a
-- join. The step is in the same visit: finished activities, the checkpoint and the idempotency key stay valid.
-- If the instance keeps a history (keeps_history.sql), the retry is in it, under the new number of claims.
-- Index: primary key, instances_unique, instances_key, signals_inbox. Locks: the parent and the row, in id order, as in
-- flush (tests/interleavings: retry_retry). A signal cannot come in between: an ended row receives none.
create or replace function @schema.retry(instance bigint, key bytea default null, notify boolean default true)
returns table (id bigint, was text, woken_queue text)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
  target constant bigint := coalesce(instance, @schema.id_of_key(key));
  old record;
  waits boolean;  -- for a signal, as it did before it was cancelled
begin
  perform from @schema.instances i
  where i.id = any (array[target, (select child.parent_id from @schema.instances child where child.id = target)])
  order by i.id for no key update;
  select i.id, i.status::text as status, i.parent_id, i.parent_round, i.queue, i.awaits, i.seen into old
  from @schema.instances i where i.id = target;
  if not found then
    return;
  end if;
  if old.status not in ('failed', 'cancelled') then
    return query select old.id, old.status, null::text;
    return;
  end if;
  waits := old.awaits is not null and old.seen is not null and not exists (
    select from @schema.signals signal
    where signal.target_id = target and not signal.consumed and signal.name = any (old.awaits)
      and signal.id <> all (old.seen)
  );
  update @schema.instances i set
    status = case when waits then 'awaiting_signal' else 'runnable' end::@schema.durable_status,
    attempt = 0,
    step_errors = 0,
    crashes = 0,
    claimed_ahead = false,
    postponements = 0,
    claims = i.claims + 1,
    cancel_reason = null,  -- stays with a row that was executing when it was cancelled
    children_pending = 0,
    children_needed = null,
    on_failure = null,
    cancel_rest = null,
    joined = not waits and i.round > 0,
    eligible_at = now(),
    finished_at = null,
    updated_at = now()
  where i.id = target;
  insert into @schema.transitions (instance_id, seq, n, step, outcome, next_step, attempt, started_at, duration, cause)
  select i.id, i.seq, i.claims, i.step, 'Retried', i.step, 0, now(), 0, 'operator'
  from @schema.instances i where i.id = target and @schema.keeps_history(i.id, i.seq);
  update @schema.instances parent set children_pending = parent.children_pending + 1, updated_at = now()
  where parent.id = old.parent_id and parent.round = old.parent_round and parent.status = 'awaiting_children';
  if notify then
    perform @schema.notify_workers('queue', array[old.queue]);
  end if;
  return query select old.id, old.status, old.queue;
end
$$;

comment on function @schema.retry(bigint, bytea, boolean) is
  'Lets a failed or cancelled instance run again from the step in which it ended: select * from '
  'gen_durable.retry(42). Your commit wakes the workers, unless you pass notify => false.';
