-- gates_busy_for_new_rows: the gates of new rows, with those that rows of other transactions hold.
--
-- Parameters: the gates that gates_blocking_new_rows.sql has found, and columns of insert, in parallel.
-- Returns per row a gate to insert it blocked on, or null. A due row is blocked if a row of its partition key executes, or
-- if rows wait at its gate already: at that of a limit, rows of the same queue. Otherwise a pick would have to block it.
-- The gate may become free before the row is committed, and the transaction that frees it does not see the row. So the
-- caller of insert looks again after its commit (unblock_new_rows.sql). The gate is not locked: the transaction may go on
-- for long, and picks skip a locked gate.
-- Index: instances_partition, instances_blocked, instances_limited. Locks: none.
-- Guarded by tests/store/test_busy_gates.py, tests/interleavings/test_busy_gates.py.
create or replace function @schema.gates_busy_for_new_rows(
  blocked text[], queues text[], partition_keys text[], slot_keys text[], rate_keys text[], delays float8[],
  schedule_ats timestamptz[]
)
returns text[]
language sql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
  select array_agg(case
    when gated.blocked_on is not null then gated.blocked_on
    when gated.gate is null or gated.eligible_at > now() then null
    when gated.partition_key is null then (
      select i.blocked_on from @schema.instances i
      where i.blocked_on = gated.gate and not starts_with(i.blocked_on, 'partition/') and i.queue = gated.queue
      limit 1
    )
    else coalesce(
      (
        select gated.gate from @schema.instances i
        where i.status = 'executing' and i.partition_key = gated.partition_key
        limit 1
      ),
      (select i.blocked_on from @schema.instances i where i.blocked_on = gated.gate limit 1)
    )
  end order by gated.position)
  from (
    select new_row.position, new_row.blocked_on, new_row.queue, new_row.partition_key,
      coalesce(new_row.schedule_at, now() + make_interval(secs => coalesce(new_row.delay, 0))) as eligible_at,
      coalesce(
        @schema.gate_name('partition', new_row.partition_key),
        @schema.gate_name('slot', new_row.slot_key),
        @schema.gate_name('rate', new_row.rate_key)
      ) as gate
    from unnest(blocked, queues, partition_keys, slot_keys, rate_keys, delays, schedule_ats) with ordinality
      as new_row (blocked_on, queue, partition_key, slot_key, rate_key, delay, schedule_at, position)
  ) as gated
$$;
