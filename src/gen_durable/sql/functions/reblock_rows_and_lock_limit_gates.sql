-- reblock_rows_and_lock_limit_gates: lock the gates of all limits, before the policy of one is applied to the rows that
-- wait for it.
--
-- Parameter: the name of the limit. Its rows with a token_at in the future are blocked again first, waiting for each of
-- them: under the locks of gates a transaction must not wait for a row, so reapply_limit skips those that are locked.
-- The partitions of a limit are not known here, so all 2,048 rows are locked. Every session that admits rows by a policy
-- holds the gate's lock from before it reads the policy until it commits: after this call none of them is left that has
-- read the old policy, and none reads a policy until the caller has committed.
-- Index: instances_token_due, the primary key of gate_locks.
-- Locks: rows in the order of ids, then gates in the order of their lock ids.
-- Guarded by tests/interleavings/test_limits.py (test_policy_pick_fewer_slots), test_policy.py, test_lock_order.py.
create or replace function @schema.reblock_rows_and_lock_limit_gates(name text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  scheduled_ids bigint[];  -- rows with a token_at in the future
begin
  scheduled_ids := array(
    select scheduled.id from (
      select i.id from @schema.instances i where i.token_at > clock_timestamp() and i.rate_key = name
      union all
      select i.id from @schema.instances i
      where i.token_at > clock_timestamp() and i.rate_key > name || '/' and i.rate_key < name || '0'
    ) as scheduled
  );
  update @schema.instances i set blocked_on = @schema.gate_name('rate', i.rate_key), token_at = null
  where i.id = any (array(
    select locked.id from (
      select i.id, i.token_at from @schema.instances i where i.id = any (scheduled_ids) order by i.id for no key update
    ) as locked
    where locked.token_at > clock_timestamp()
  ));
  perform from @schema.gate_locks lock where lock.id >= 2048 order by lock.id for no key update;
end
$$;
