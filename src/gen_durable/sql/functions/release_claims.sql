-- release_claims: give back claims that a worker did not run.
--
-- Parameters: ids and epochs in id order; per row a delay in seconds and a reason, both null for a row that was not
-- started: it keeps its place and its counters. A row with a delay is postponed: the delay doubles with each
-- postponement in a row, up to `longest_delay` seconds, and begins anew after an outcome. It is no crash.
-- Returns one row: the ids given back, and the queues of rows that were next at their gates. The attempt stays.
-- `claims` goes up, so a late outcome of the old epoch is stale (tests/interleavings: release_flush).
-- Index: primary key. Locks: the rows in id order, then their gates.
create or replace function @schema.release_claims(
  ids bigint[], claims bigint[], delays float8[], reasons text[], longest_delay float8 default 600,
  out released bigint[], out woken_queues text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  perform @schema.require_max_elements(greatest(
    cardinality(ids), cardinality(claims), cardinality(delays), cardinality(reasons)
  ), 100000);
  with given_back as (
    update @schema.instances i set
      -- The reaper ends a row with a pending cancel: it locks the parent in the right order.
      status = case when i.cancel_reason is null then 'runnable' else 'executing' end::@schema.durable_status,
      claims = i.claims + 1,
      postponements = least(i.postponements + case when given.delay is null then 0 else 1 end, 1000),
      eligible_at = case
        when given.delay is null then i.eligible_at
        -- Up to a tenth more, so that rows that were postponed together do not return together.
        else now() + (1 + random() / 10)
          * make_interval(
            secs => greatest(given.delay, least(given.delay * 2 ^ least(i.postponements, 20), longest_delay))
          )
      end,
      last_error = coalesce(given.reason, i.last_error),
      error_type = case when given.reason is null then i.error_type end,
      last_traceback = case when given.reason is null then i.last_traceback end,
      locked_by = case when i.cancel_reason is not null then i.locked_by end,
      lease_expires_at = case when i.cancel_reason is not null then now() end,
      -- Not knowing after how many crashes rows fail: the safer gate.
      blocked_on = case when i.cancel_reason is null then @schema.gate_of_crashed_row(i.crashes, 0, i.queue) end,
      claimed_ahead = false,
      unique_scope = case
        when i.cancel_reason is null then @schema.unique_scope_for_status(i.unique_scope, 'runnable') else i.unique_scope
      end,
      updated_at = now()
    from unnest(ids, release_claims.claims, delays, reasons) as given (id, epoch, delay, reason)
    -- Only executing rows have a lease. A condition on the status would let the planner read all leases for each row.
    where i.id = given.id and i.claims = given.epoch and i.lease_expires_at is not null
    returning i.id
  )
  select array_agg(given_back.id) into released from given_back;

  woken_queues := @schema.unblock(array(
    select distinct either.gate from @schema.instances i
    cross join lateral (
      values (@schema.gate_name('partition', i.partition_key)), (@schema.gate_name('slot', i.slot_key))
    ) as either (gate)
    where i.id = any (ids) and either.gate is not null
  ), true);
end
$$;
