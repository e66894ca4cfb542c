-- unblock: return the next rows of gates that may have become free to the pick index.
--
-- Parameters:
--   gates         what may be free (gate_name.sql)
--   should_wait   wait for the lock of each gate; if false, skip gates that another session has locked, as set_limit
--                 does with the gates of all limits: it unblocks the rows of its limit itself
--   is_cautious   as in unblock_slot_rows.sql
--   claimed_rows  rows that the caller is about to claim, as in unblock_rate_rows.sql
-- Returns the queues of the unblocked rows.
-- Every transaction that moves a row out of executing calls this with its last locks. A session that holds the lock of
-- a gate never waits for a row, so waiting here cannot deadlock. For the same reason a row that a delivery has locked
-- is skipped, and left to unblock_missed_rows. A row that a pick blocks at the same time is not missed: the pick holds the
-- lock of the gate until it commits, and this function reads the rows after it has the lock.
-- Locks: gates in the order of their lock ids.
-- Guarded by tests/interleavings/test_claim_claim.py (test_block_release), test_lock_order.py, test_policy.py.
create or replace function @schema.unblock(
  gates text[], should_wait boolean, is_cautious boolean default false, claimed_rows tid[] default '{}'
)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  locked_gates text[] := gates;
  partition_keys text[];
  limit_gates text[];
  woken_queues text[];
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    perform @schema.require_read_committed();
  end if;
  if should_wait then
    perform from @schema.gate_locks lock
    where lock.id = any (array(select @schema.gate_row_id(freed.gate) from unnest(gates) as freed (gate)))
    order by lock.id
    for no key update;
  else
    locked_gates := array(
      select freed.gate from unnest(gates) as freed (gate)
      cross join lateral (
        select from @schema.gate_locks lock where lock.id = @schema.gate_row_id(freed.gate)
        for no key update skip locked
      ) as locked
    );
  end if;

  select
    array_agg(@schema.key_of_gate(locked.gate)) filter (where starts_with(locked.gate, 'partition/')),
    array_agg(locked.gate) filter (where not starts_with(locked.gate, 'partition/'))
  into partition_keys, limit_gates
  from unnest(locked_gates) as locked (gate);

  if partition_keys is not null then
    woken_queues := @schema.unblock_partition_rows(partition_keys);
  end if;
  if limit_gates is not null then
    woken_queues := woken_queues
      || @schema.unblock_slot_rows(limit_gates, is_cautious)
      || @schema.unblock_rate_rows(limit_gates, claimed_rows);
  end if;
  return woken_queues;
end
$$;
