-- wake_if_signal_came: wake rows that were just parked and for which a signal has arrived meanwhile. flush parks them in
-- one statement and calls this in the next.
--
-- Parameters: the ctids of rows that this transaction has parked, and so has locked. Returns the queues of the woken
-- rows.
-- Rows without the flag `has_signals` are not passed: a delivery sets it under the row's lock, which the parking
-- transaction holds. A signal that the parking step received does not count (`seen`), or a step that collects signals
-- would spin.
-- This must be a statement of its own: its snapshot must be younger than the lock. It sees a delivery that committed
-- before the lock was granted; a later delivery waits for the lock and finds the row parked (tests/interleavings:
-- park_deliver, which fails without this function).
-- Index: signals_inbox. Locks: none beyond those of the caller.
create or replace function @schema.wake_if_signal_came(parked tid[])
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  woken_queues text[];
begin
  with woken_row as (
    update @schema.instances i set
      status = 'runnable',
      eligible_at = now(),
      unique_scope = @schema.unique_scope_for_status(i.unique_scope, 'runnable')
    where i.ctid = any (parked) and exists (
      select from @schema.signals signal
      where signal.target_id = i.id and not signal.consumed and signal.name = any (i.awaits)
        and signal.id <> all (i.seen)
    )
    returning i.queue
  )
  select array_agg(distinct woken_row.queue) into woken_queues from woken_row;
  return woken_queues;
end
$$;
