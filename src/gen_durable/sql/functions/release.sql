-- release: a worker gives back claims that it did not run.
--
-- In: ids and claims in id order; per row a delay in seconds and the reason, both null for a row that was merely not
-- started: it keeps its place and nothing is counted against it. With a reason it counts as a claim without an outcome.
-- Out: the ids given back; then, without an id, the queues of rows that were next at their gates. Claims are bumped, so an
-- outcome that still comes for the old claim is stale (tests/interleavings: release_flush). The attempt is not burned.
-- Index: primary key. Locks: id order.
create or replace function @schema.release(ids bigint[], claims int[], delays float8[], reasons text[])
returns table (id bigint, woken text)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  return query
    update @schema.instances i set
      -- One that is to be cancelled is left to the reaper, who ends it: its parent is told there, in the right order.
      status = case when i.cancel_reason is null then 'runnable' else 'executing' end::@schema.durable_status,
      claims = i.claims + 1,
      crashes = i.crashes + case when o.reason is null then 0 else 1 end,
      eligible_at = case when o.delay is null then i.eligible_at else now() + make_interval(secs => o.delay) end,
      last_error = coalesce(o.reason, i.last_error),
      locked_by = case when i.cancel_reason is not null then i.locked_by end,
      lease_expires_at = case when i.cancel_reason is not null then now() end,
      unique_scope = case
        when i.cancel_reason is not null or 'runnable' = any (i.unique_scope) then i.unique_scope else '{}'
      end,
      updated_at = now()
    from unnest(ids, release.claims, delays, reasons) as o (id, claim, delay, reason)
    -- Only executing rows have a lease. Asked for the status, the planner may read all leases for each row of the batch.
    where i.id = o.id and i.claims = o.claim and i.lease_expires_at is not null
    returning i.id, null::text;

  return query
    select null::bigint, w.queue
    from unnest(@schema.unblock(array(
      select distinct v.gate from @schema.instances i
      cross join lateral (values ('partition/' || i.partition_key), ('slot/' || i.slot_key)) as v (gate)
      where i.id = any (ids) and v.gate is not null
    ), true)) as w (queue);
end
$$;
