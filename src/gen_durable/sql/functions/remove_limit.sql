-- remove_limit: delete a limit, with its buckets, and unblock the rows that wait for it.
--
-- Parameters: the name; notify: wake the workers of unblocked rows with the commit (notify_workers.sql).
-- Returns whether the limit existed; the queues of the unblocked rows. Rows that name a removed limit run without it.
-- Locks: as set_limit. Guarded by tests/interleavings/test_policy.py (test_removal_pick).
create or replace function @schema.remove_limit(
  name text, notify boolean default true, out removed boolean, out woken_queues text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
begin
  perform from @schema.gate_locks lock where lock.id = -1 - (hashtext(name) & 63) for no key update;
  delete from @schema.limits stored where stored.name = name;
  removed := found;
  if removed then
    perform @schema.reblock_rows_and_lock_limit_gates(name);
    delete from @schema.rate_buckets bucket
    where bucket.key = name or (bucket.key > name || '/' and bucket.key < name || '0');
    woken_queues := @schema.reapply_limit(name);
  end if;
  if notify then
    perform @schema.notify_workers('queue', woken_queues);
  end if;
end
$$;

comment on function @schema.remove_limit(text, boolean) is
  'Deletes a limit. Returns whether it existed, and the queues of unblocked rows, whose workers your commit '
  'wakes, unless you pass notify => false.';
