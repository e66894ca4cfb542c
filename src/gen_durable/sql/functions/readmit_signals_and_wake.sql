-- readmit_signals_and_wake: put rejected signals back into their inboxes, and wake the rows that await them.
--
-- Parameters: ids of signals. The caller has locked their instances. Returns one row: the signals put back, and the
-- queues to wake. A signal whose dedup key another signal holds stays rejected; of several with one key the oldest
-- returns. `rejected_by` is left to the caller.
-- Index: primary keys, signals_dedup. Locks: none beyond those of the caller, which a delivery takes too, so no signal
-- with the same dedup key can come in between.
create or replace function @schema.readmit_signals_and_wake(ids bigint[], out readmitted bigint[], out woken_queues text[])
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
  with returning_signal as (
    update @schema.signals s set consumed = false, rejection = null
    where s.id = any (ids) and s.rejection is not null and (
      s.dedup_key is null
      or not exists (
        select from @schema.signals other
        where other.target_id = s.target_id and other.dedup_key = s.dedup_key
          and (other.rejection is null or (other.id < s.id and other.id = any (ids)))
      )
    )
    returning s.id, s.target_id, s.name
  ),
  inbox as (
    select returned.target_id, array_agg(returned.name) as names from returning_signal as returned
    group by returned.target_id
  ),
  woken as (
    update @schema.instances i set
      status = 'runnable',
      eligible_at = now(),
      unique_scope = @schema.unique_scope_for_status(i.unique_scope, 'runnable'),
      updated_at = now()
    from inbox
    where i.id = inbox.target_id and i.status = 'awaiting_signal' and i.awaits && inbox.names
    returning i.queue
  )
  select
    (select array_agg(returned.id) from returning_signal as returned),
    (select array_agg(distinct woken.queue) from woken)
  into readmitted, woken_queues;
end
$$;
