-- retry_signals_others_rejected: let a worker try signals again that other definitions could not read.
--
-- Parameters, the first three in parallel: the machines, versions and fingerprints of the worker; the instance and the
-- signal after which to begin; the most rejected signals to look at.
-- Returns one row: the signals put back, the queues to wake, and where the next call begins, null for the beginning.
-- A signal is tried again if its instance has not ended and the fingerprint of its machine is not in `rejected_by`, which
-- stays: each definition rejects a signal once, unless an old worker gets it again before the new one does.
-- Without rejected signals this reads one page of an empty index.
-- Index: signals_rejected, primary keys. Locks: the rows in id order, SKIP LOCKED; a locked one is left to a later round.
-- Guarded by tests/store/test_rejected_signals.py.
create or replace function @schema.retry_signals_others_rejected(
  machines text[], versions int[], fingerprints text[], after_target bigint, after_signal bigint, batch int,
  out readmitted bigint[], out woken_queues text[], out last_target bigint, out last_signal bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  seen_count int;
  candidates bigint[];
  targets bigint[];
  locked_targets bigint[];
begin
  perform @schema.require_max_elements(greatest(
    cardinality(machines), cardinality(versions), cardinality(fingerprints)
  ), 100000);
  with visited as materialized (
    select s.id, s.target_id, s.rejected_by from @schema.signals s
    where s.rejection is not null and (s.target_id, s.id) > (after_target, after_signal)
    order by s.target_id, s.id limit batch
  )
  select
    count(*), max(visited.target_id),
    max(visited.id) filter (where visited.target_id = (select max(last.target_id) from visited as last)),
    array_agg(visited.id) filter (where known.fingerprint <> all (visited.rejected_by)),
    array_agg(distinct visited.target_id) filter (where known.fingerprint <> all (visited.rejected_by))
  into seen_count, last_target, last_signal, candidates, targets
  from visited
  left join @schema.instances i on i.id = visited.target_id and i.finished_at is null
  left join unnest(machines, versions, fingerprints) as known (machine, version, fingerprint)
    on known.machine = i.fsm and known.version = i.fsm_version;
  if seen_count < batch then
    last_target := null;
    last_signal := null;
  end if;
  if candidates is null then
    return;
  end if;

  locked_targets := array(
    select i.id from @schema.instances i
    where i.id = any (targets) order by i.id for no key update skip locked
  );
  select returned.readmitted, returned.woken_queues into readmitted, woken_queues
  from @schema.readmit_signals_and_wake(array(
    select s.id from @schema.signals s where s.id = any (candidates) and s.target_id = any (locked_targets)
  )) as returned;
end
$$;
