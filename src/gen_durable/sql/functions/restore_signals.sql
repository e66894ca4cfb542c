-- restore_signals: let every worker try rejected signals again, at an operator's request.
--
-- Parameters: ids of signals; notify: wake the workers with the commit (notify_workers.sql).
-- Returns one row per id, in input order: a verdict, 'restored', 'duplicate' (another signal has its dedup key now),
-- 'not_rejected' or 'unknown'; and the queue of its instance, null if it was not restored.
-- Index: primary keys, signals_dedup. Locks: the instances in id order, as a delivery.
-- Guarded by tests/store/test_rejected_signals.py.
create or replace function @schema.restore_signals(ids bigint[], notify boolean default true)
returns table (ord int, verdict text, woken_queue text)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
  rejected bigint[];
  readmitted bigint[];
  queues text[];
begin
  perform @schema.require_max_elements(cardinality(ids), 100000);
  perform from @schema.instances i
  where i.id = any (array(select s.target_id from @schema.signals s where s.id = any (ids)))
  order by i.id for no key update;
  rejected := array(select s.id from @schema.signals s where s.id = any (ids) and s.rejection is not null);
  select returned.readmitted, returned.woken_queues into readmitted, queues
  from @schema.readmit_signals_and_wake(rejected) as returned;
  update @schema.signals s set rejected_by = null where s.id = any (readmitted);
  if notify then
    perform @schema.notify_workers('queue', queues);
  end if;
  return query
    select
      given.ord::int,
      case
        when given.id = any (readmitted) then 'restored'
        when given.id = any (rejected) then 'duplicate'
        when s.id is not null then 'not_rejected'
        else 'unknown'
      end,
      case when given.id = any (readmitted) then i.queue end
    from unnest(ids) with ordinality as given (id, ord)
    left join @schema.signals s on s.id = given.id
    left join @schema.instances i on i.id = s.target_id
    order by given.ord;
end
$$;

comment on function @schema.restore_signals(bigint[], boolean) is
  'Lets workers try rejected signals again: select * from gen_durable.restore_signals(array[7]). Returns restored, '
  'duplicate (its dedup key was used again), not_rejected or unknown for each.';
