-- reap: take back claims whose lease has expired. Fails rows that crashed too often, ends rows with a cancel request.
--
-- Parameters: batch, the most rows to take back; max_crashes, after how many crashes a row fails (null for never);
-- without_history, the machines that keep no history, as far as the caller knows; skip, how many of the oldest leases to
-- leave out, because their rows fail the statement (engine/skipping_batch_runner.py).
-- Returns one row: reclaimed, an array of {id, machine, version, step, queue, crashes, dead}, or null; woken_queues,
-- the queues in which rows became runnable; cascade_origins, parents whose other children cancel_listed_descendants.sql
-- must cancel; cascade_due, whether a cascade is older than 2 s, so the process that carried it out has died.
-- A row that was claimed ahead may not have begun: its crash is not counted. It is not claimed ahead again until it has
-- an outcome (claimable_rows.sql), so the next one is. A row that crashed twice in a row runs apart
-- (gate_of_crashed_row.sql). Every worker runs this; there is no leader. A row that is taken back keeps its eligible_at and
-- so its place: within a partition key it stays the head. A crash is recorded in the history of the row if it
-- keeps one: its last outcome shows that (keeps_history.sql), or, for a row without an outcome, `without_history`. The end of a
-- row is an outcome, with the next seq; any other crash has the number of claims that it raises, so that it cannot collide
-- with an outcome of a later claim (tests/interleavings: reap_late_outcome).
-- Index: instances_lease; primary keys.
-- Locks: the rows in id order, then the parents of rows that end, both with SKIP LOCKED, then gates. Parents come after
-- their children here and before them in flush and signal, so waiting for one would deadlock (tests/interleavings:
-- reap_flush).
create or replace function @schema.reap(
  batch int, max_crashes int default null, without_history text[] default '{}', skip int default 0,
  out reclaimed jsonb, out woken_queues text[], out cascade_origins bigint[], out cascade_due boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  candidates bigint[];
  expired bigint[];
  ending bigint[];           -- expired rows that fail or are cancelled
  parents bigint[];          -- of the ending rows; then those of them that another session has locked
  locked_parents bigint[];
  postponed bigint[];        -- ending rows whose parent is locked: left to the next reap
  freed_gates text[];
begin
  perform @schema.require_max_elements(cardinality(without_history), 100000);
  cascade_due := exists (
    select from (select entry.inserted_at from @schema.cascades entry order by entry.id limit 1) as oldest
    where oldest.inserted_at < now() - interval '2 seconds'
  );
  candidates := array(
    select i.id from @schema.instances i
    where i.status = 'executing' and i.lease_expires_at < now() order by i.lease_expires_at offset skip limit batch
  );
  -- Only executing rows have a lease. A condition on the status would let the planner read the index of all leases.
  select array_agg(expired_row.id),
    array_agg(distinct @schema.gate_name('partition', expired_row.partition_key))
        filter (where expired_row.partition_key is not null)
      || array_agg(distinct @schema.gate_name('slot', expired_row.slot_key)) filter (where expired_row.slot_key is not null)
  into expired, freed_gates
  from (
    select i.id, i.partition_key, i.slot_key from @schema.instances i
    where i.id = any (candidates) and i.lease_expires_at < now()
    order by i.id
    for no key update skip locked
  ) as expired_row;
  if expired is null then
    return;
  end if;

  select array_agg(i.id) into ending from @schema.instances i
  where i.id = any (expired)
    and (i.cancel_reason is not null or (i.crashes + 1 >= max_crashes and not i.claimed_ahead));
  if ending is not null then
    parents := array(select distinct child.parent_id from @schema.instances child where child.id = any (ending));
    select coalesce(array_agg(parent.id), '{}') into locked_parents
    from (
      select parent.id from @schema.instances parent
      where parent.id = any (parents) order by parent.id for no key update skip locked
    ) as parent;
    parents := array(
      select parent.id from @schema.instances parent where parent.id = any (parents) and parent.id <> all (locked_parents)
    );
    if cardinality(parents) > 0 then
      postponed := array(
        select child.id from @schema.instances child
        where child.id = any (ending) and coalesce(child.parent_id, 0) = any (parents)
      );
      expired := array(select claim.id from unnest(expired) as claim (id) where claim.id <> all (postponed));
      ending := array(select claim.id from unnest(ending) as claim (id) where claim.id <> all (postponed));
    end if;
  end if;

  insert into @schema.transitions (
    instance_id, seq, n, step, outcome, next_step, attempt, started_at, duration, waited, cause, worker, error, error_type
  )
  select
    i.id, case when claim.is_end then i.seq + 1 else i.seq end, case when claim.is_end then 0 else i.claims + 1 end, i.step,
    case when i.cancel_reason is null then 'Crashed' else 'Cancel' end, case when not claim.is_end then i.step end, i.attempt,
    i.updated_at, extract(epoch from now() - i.updated_at), greatest(extract(epoch from i.updated_at - i.eligible_at), 0),
    @schema.cause_of_claim(
      i.claims, i.seq, i.timed_out_claim, i.crashes, i.attempt, i.last_error, i.joined, i.awaits
    ),
    i.locked_by,
    coalesce(i.cancel_reason, case when claim.is_end then @schema.crash_loop_error(i.step, i.crashes + 1) end),
    case when i.cancel_reason is null and claim.is_end then 'CrashLoop' end
  from @schema.instances i
  cross join lateral (select coalesce(i.id = any (ending), false) as is_end) as claim
  where i.id = any (expired) and (claim.is_end or not i.claimed_ahead) and case
    when i.seq = 0 then i.fsm <> all (without_history)
    else @schema.keeps_history(i.id, i.seq)
  end;

  with taken_back as (
    update @schema.instances i set
      status = case
        when i.cancel_reason is not null then 'cancelled' when i.id = any (ending) then 'failed' else 'runnable'
      end::@schema.durable_status,
      claims = i.claims + 1,
      crashes = i.crashes + case when i.claimed_ahead then 0 else 1 end,
      blocked_on = case
        when i.id = any (ending) then null
        else @schema.gate_of_crashed_row(i.crashes + case when i.claimed_ahead then 0 else 1 end, max_crashes, i.queue)
      end,
      attempt = i.attempt + 1,
      seq = case when i.id = any (ending) then i.seq + 1 else i.seq end,
      locked_by = null,
      lease_expires_at = null,
      finished_at = case when i.id = any (ending) then now() end,
      last_error = case
        when i.cancel_reason is not null then i.cancel_reason
        when i.id = any (ending) then @schema.crash_loop_error(i.step, i.crashes + 1)
        else i.last_error
      end,
      error_type = case
        when i.cancel_reason is not null then null when i.id = any (ending) then 'CrashLoop' else i.error_type
      end,
      last_traceback = case when i.id = any (ending) then null else i.last_traceback end,
      unique_scope = @schema.unique_scope_for_status(i.unique_scope, case
        when i.cancel_reason is not null then 'cancelled' when i.id = any (ending) then 'failed' else 'runnable'
      end::@schema.durable_status),
      updated_at = now()
    where i.id = any (expired)
    returning i.id, i.fsm, i.fsm_version, i.step, i.queue, i.crashes, i.status
  )
  select jsonb_agg(jsonb_build_object(
    'id', taken_back.id, 'machine', taken_back.fsm, 'version', taken_back.fsm_version, 'step', taken_back.step,
    'queue', taken_back.queue, 'crashes', taken_back.crashes, 'dead', taken_back.status = 'failed'
  )) into reclaimed
  from taken_back;

  if ending is not null then
    select released.woken_queues, released.cascade_origins into woken_queues, cascade_origins
    from @schema.count_ended_children_and_wake_parents(ending) as released;
  end if;
  -- Slots that their steps acquired while they ran.
  with freed as (
    delete from @schema.step_slots s where s.instance_id = any (expired) returning s.slot_key
  )
  select freed_gates || array_agg(distinct @schema.gate_name('slot', freed.slot_key)) into freed_gates from freed;
  -- A row that came in meanwhile may precede the one that was taken back, whose queue has perhaps lost its worker.
  if freed_gates is not null then
    woken_queues := woken_queues || @schema.unblock(freed_gates, false);
  end if;
end
$$;
