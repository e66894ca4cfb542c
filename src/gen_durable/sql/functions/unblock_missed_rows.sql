-- unblock_missed_rows: the backstop of unblock: visit the gates that rows are blocked on, and unblock rows of free ones.
--
-- Parameters: the gate after which to continue, or null to start with the first; how many gates to visit;
-- how many of them to leave as they are, because they fail the statement.
-- Returns the last gate visited, or null if no gate is left; the queues of the unblocked rows.
-- Writes only if a row was missed, for example because a delivery had locked it when its gate became free.
-- A gate that is taken is not locked, so that the many gates of a busy table are visited quickly and no other session
-- meets their locks: the transaction that frees such a gate unblocks its rows. unblock looks again under the lock.
-- Index: instances_blocked, stepping from gate to gate; instances_partition, instances_slot.
-- Locks: as unblock without waiting, for gates that seem to be free.
-- Guarded by tests/store/test_partition.py (test_the_sweep_finds_what_was_stranded).
create or replace function @schema.unblock_missed_rows(
  after text, batch int, skip int default 0, out last_gate text, out woken_queues text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  gate text := coalesce(after, '');
  gates text[] := '{}';
begin
  for visited in 1..coalesce(batch, 0) loop
    select i.blocked_on into gate from @schema.instances i where i.blocked_on > gate order by i.blocked_on limit 1;
    exit when not found;
    if visited > skip then
      gates := gates || gate;
    end if;
  end loop;
  last_gate := gate;  -- null if no gate was left
  gates := array(
    select visited.gate from unnest(gates) as visited (gate)
    left join @schema.limits policy on policy.name = split_part(visited.gate, '/', 2) and policy.kind = 'concurrency'
      and starts_with(visited.gate, 'slot/')
    where case
      when starts_with(visited.gate, 'partition/') then (  -- not an EXISTS: that might be hashed
        select i.id from @schema.instances i
        where i.partition_key = @schema.key_of_gate(visited.gate) and i.status = 'executing'
        limit 1
      ) is null
      when policy.slots is not null then
        @schema.count_taken_slots(@schema.key_of_gate(visited.gate), policy.slots) < policy.slots
      else true
    end
  );
  if cardinality(gates) > 0 then
    woken_queues := @schema.unblock(gates, false, true);
  end if;
end
$$;
