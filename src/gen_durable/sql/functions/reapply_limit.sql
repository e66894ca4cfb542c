-- reapply_limit: apply a changed or removed limit to the rows that wait for it, in all its partitions.
--
-- Parameter: the name of the limit. Returns the queues of the unblocked rows.
-- Rows with a token_at in the future are blocked again, so that unblock computes it anew by the new policy. A row whose
-- token_at has passed is left alone: it can be picked, and admit_or_block_rows_by_limit decides by the new policy.
-- Keys of a limit are its name, or 'NAME/PARTITION'; '0' is the character after '/', so NAME/ .. NAME0 is the range of
-- the latter.
-- Index: instances_token_due, instances_blocked, stepping from gate to gate.
-- Locks: the caller holds the gates of all limits (reblock_rows_and_lock_limit_gates.sql), so rows with SKIP LOCKED: one
-- that is skipped got its token_at after reblock_rows_and_lock_limit_gates had read them, and keeps it.
-- Guarded by tests/interleavings/test_policy.py (test_reapply_cancel), tests/store/test_guards.py, test_no_waiting.py.
create or replace function @schema.reapply_limit(name text)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  scheduled_ids bigint[];  -- rows with a token_at in the future
  gates text[] := '{}';
  gate text;
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
    select i.id from @schema.instances i where i.id = any (scheduled_ids) and i.token_at > clock_timestamp()
    for no key update skip locked
  ));

  foreach gate in array array[@schema.gate_name('rate', name), @schema.gate_name('slot', name)] loop
    if exists (select from @schema.instances i where i.blocked_on = gate) then
      gates := gates || gate;
    end if;
    gate := gate || '/';
    loop
      select i.blocked_on into gate from @schema.instances i
      where i.blocked_on > gate and i.blocked_on < left(gate, 5) || name || '0' order by i.blocked_on limit 1;
      exit when not found;
      gates := gates || gate;
    end loop;
  end loop;
  return @schema.unblock(gates, true);
end
$$;
