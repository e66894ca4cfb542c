-- end_or_request_cancel: the part of cancel and cancel_listed_descendants for rows that this transaction has locked, with
-- their parents, in id order: ends those that wait, and marks those that execute.
--
-- Parameters: ids, and per id the reason, whether to cancel its children too, and the instance at which the cancel
-- began.
-- Returns ended, the ids that ended; requested, the ids that execute and now have a cancel request; woken_queues, the
-- queues in which rows became runnable; cascade_origins, parents that continue without their other children;
-- workers_with_cancel_requests, the workers that run rows with a request; freed_gates, the gates that the caller must unblock as
-- its last locks.
-- A waiting row ends at once and keeps its signals and what it awaits, for a retry. If it keeps a history, that says so
-- (keeps_history.sql), after its last outcome and under the new number of claims. Its claims go up, so a late outcome or retry is stale. An executing row gets
-- cancel_reason: flush accepts only an end from its worker, and reap ends it if the worker is dead. A row that was next
-- at a gate, or has a token_at, has others behind it, so all its gates are freed.
-- Index: primary key. Locks: none beyond those of the caller.
-- Guarded by tests/interleavings/test_cancel.py.
create or replace function @schema.end_or_request_cancel(
  ids bigint[], reasons text[], cascades boolean[], origins bigint[],
  out ended bigint[], out requested bigint[], out woken_queues text[], out cascade_origins bigint[],
  out workers_with_cancel_requests text[], out freed_gates text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  parents bigint[];  -- the rows that may have children
  marked bigint[];
begin
  select array_agg(i.id), array_agg(distinct i.locked_by) into requested, workers_with_cancel_requests
  from @schema.instances i where i.id = any (ids) and i.lease_expires_at is not null;

  with marked_row as (
    update @schema.instances i set cancel_reason = given.reason, updated_at = now()
    from unnest(ids, reasons) as given (id, reason)
    where i.id = given.id and i.lease_expires_at is not null and i.cancel_reason is null  -- the first reason stays
    returning i.id, i.round
  )
  select array_agg(marked_row.id) filter (where marked_row.round > 0) into marked from marked_row;

  with ended_row as (
    update @schema.instances i set
      status = 'cancelled',
      claims = i.claims + 1,
      last_error = given.reason,
      error_type = null,
      last_traceback = null,
      finished_at = now(),
      await_deadline = case when i.awaits is not null then i.await_deadline end,
      token_at = null,
      blocked_on = null,
      children_pending = 0,
      unique_scope = @schema.unique_scope_for_status(i.unique_scope, 'cancelled'),
      updated_at = now()
    from unnest(ids, reasons) as given (id, reason)
    where i.id = given.id and i.finished_at is null and i.lease_expires_at is null
    returning i.id, i.round, i.partition_key, i.slot_key, i.rate_key
  )
  select
    array_agg(ended_row.id),
    array_agg(ended_row.id) filter (where ended_row.round > 0),
    array_agg(distinct @schema.gate_name('partition', ended_row.partition_key))
        filter (where ended_row.partition_key is not null)
      || array_agg(distinct @schema.gate_name('slot', ended_row.slot_key)) filter (where ended_row.slot_key is not null)
      || array_agg(distinct @schema.gate_name('rate', ended_row.rate_key)) filter (where ended_row.rate_key is not null)
  into ended, parents, freed_gates
  from ended_row;

  if ended is not null then
    insert into @schema.transitions (instance_id, seq, n, step, outcome, attempt, started_at, duration, cause, error)
    select
      i.id, i.seq, i.claims, i.step, 'Cancel', i.attempt, now(), 0,
      case when given.origin = i.id then 'operator' else 'parent' end, i.last_error
    from unnest(ids, origins) as given (id, origin)
    join @schema.instances i on i.id = given.id
    where given.id = any (ended) and i.seq > 0 and @schema.keeps_history(i.id, i.seq);
  end if;
  parents := parents || marked;
  if parents is not null then
    insert into @schema.cascades (parent_id, first_round, last_round, origin, reason)
    select i.id, 0, i.round, given.origin, given.reason
    from unnest(ids, reasons, cascades, origins) as given (id, reason, cascades, origin)
    join @schema.instances i on i.id = given.id
    where given.cascades and given.id = any (parents);
  end if;
  if ended is not null then
    select released.woken_queues, released.cascade_origins into woken_queues, cascade_origins
    from @schema.count_ended_children_and_wake_parents(ended) as released;
  end if;
end
$$;
