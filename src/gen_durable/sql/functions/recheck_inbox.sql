-- recheck_inbox: the second half of parking. Wakes the rows just parked for which a signal has come meanwhile.
--
-- In: places of rows that this transaction has parked, so it holds their locks. Out: the queues of the rows woken.
-- A row without the flag `has_signals` need not come: a delivery sets it under the row's lock, which the parking has had since.
-- A signal that the parking step was shown does not count (seen), or collecting a pack would spin.
-- This must be a statement of its own: its snapshot has to be younger than the lock. A delivery that committed before
-- the lock was granted is seen here; one that comes later waits for the lock and finds the row parked
-- (tests/interleavings: park_deliver, red without this).
-- Index: signals_inbox.
create or replace function @schema.recheck_inbox(parked tid[])
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  woken text[];
begin
  with u as (
    update @schema.instances i set
      status = 'runnable',
      eligible_at = now(),
      await_deadline = null,
      unique_scope = @schema.scope_after(i.unique_scope, 'runnable')
    where i.ctid = any (parked) and exists (
      select from @schema.signals s
      where s.target_id = i.id and not s.consumed and s.name = any (i.awaits) and s.id <> all (i.seen)
    )
    returning i.queue
  )
  select array_agg(distinct u.queue) into woken from u;
  return woken;
end
$$;
