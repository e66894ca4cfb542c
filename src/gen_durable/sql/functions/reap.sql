-- reap: take back claims whose lease has run out; fail those that have crashed too often, end those to be cancelled.
--
-- In: how many at most; after how many crashes a row is failed (null: never); machines that keep no history, as far as the
-- caller knows. Out: the rows taken back, and whether each was failed; then, without an id, the queues of parents whose last child was ended here, and of rows that were
-- next after an ended one, the parents whose other children are to be cancelled, and whether any cascade is older than 2 s:
-- its process has died.
-- Every worker runs this; there is no leader. It acts on row truth alone. A row taken back keeps its eligible_at, and
-- so its place: within a partition key it stays the head. An end is written into the history of a row that has one: what was
-- noted of its last outcome tells, or, of one that never had an outcome, the caller.
-- Index: instances_lease; primary keys. Locks: id order, SKIP LOCKED, the parents of ended rows too: they come after their children
-- here and before them in flush and signal, so waiting for one would deadlock (tests/interleavings: reap_flush).
create or replace function @schema.reap(batch int, max_crashes int default null, silent text[] default '{}')
returns table (id bigint, fsm text, fsm_version int, step text, queue text, crashes int, dead boolean, cancel_children bigint[], cascade_due boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  candidates bigint[];
  expired bigint[];
  doomed bigint[];
  parents bigint[];    -- of the doomed; then those of them that somebody else holds
  held bigint[];       -- the parents that could be locked
  woken text[];
  freed text[];
  postponed bigint[];  -- doomed, but the parent is held by another: left to the next turn
begin
  candidates := array(
    select i.id from @schema.instances i
    where i.status = 'executing' and i.lease_expires_at < now() order by i.lease_expires_at limit batch
  );
  -- Only executing rows have a lease, so the status is not asked again: that would let the index of all leases be read.
  select array_agg(e.id),
    array_agg(distinct 'partition/' || e.partition_key) filter (where e.partition_key is not null)
      || array_agg(distinct 'slot/' || e.slot_key) filter (where e.slot_key is not null)
  into expired, freed
  from (
    select i.id, i.partition_key, i.slot_key from @schema.instances i
    where i.id = any (candidates) and i.lease_expires_at < now()
    order by i.id
    for no key update skip locked
  ) as e;
  return query
    select null::bigint, null::text, null::int, null::text, null::text, null::int, null::boolean, null::bigint[], true
    where now() - interval '2 seconds' > (select l.inserted_at from @schema.cascades l order by l.id limit 1);
  if expired is null then
    return;
  end if;

  select array_agg(i.id) into doomed from @schema.instances i
  where i.id = any (expired) and (i.crashes + 1 >= max_crashes or i.cancel_reason is not null);
  if doomed is not null then
    parents := array(select distinct c.parent_id from @schema.instances c where c.id = any (doomed));
    select coalesce(array_agg(p.id), '{}') into held
    from (
      select p.id from @schema.instances p where p.id = any (parents) order by p.id for no key update skip locked
    ) as p;
    parents := array(select p.id from @schema.instances p where p.id = any (parents) and p.id <> all (held));
    if cardinality(parents) > 0 then
      postponed := array(
        select c.id from @schema.instances c where c.id = any (doomed) and coalesce(c.parent_id, 0) = any (parents)
      );
      expired := array(select e.id from unnest(expired) as e (id) where e.id <> all (postponed));
      doomed := array(select d.id from unnest(doomed) as d (id) where d.id <> all (postponed));
    end if;
  end if;

  if doomed is not null then
    insert into @schema.transitions (instance_id, seq, step, outcome, attempt, started_at, duration, worker, error)
    select
      i.id, i.seq + 1, i.step, case when i.cancel_reason is null then 'Crashed' else 'Cancel' end, i.attempt, i.updated_at,
      extract(epoch from now() - i.updated_at), i.locked_by, coalesce(i.cancel_reason, @schema.crash_loop_error(i.step, i.crashes + 1))
    from @schema.instances i
    where i.id = any (doomed) and case
      when i.seq = 0 then i.fsm <> all (silent)
      else exists (select from @schema.transitions t where t.instance_id = i.id and t.seq = i.seq)
    end;
  end if;

  return query
    update @schema.instances i set
      status = case
        when i.cancel_reason is not null then 'cancelled' when i.crashes + 1 >= max_crashes then 'failed' else 'runnable'
      end::@schema.durable_status,
      claims = i.claims + 1,
      crashes = i.crashes + 1,
      attempt = i.attempt + 1,
      seq = case when i.id = any (doomed) then i.seq + 1 else i.seq end,
      locked_by = null,
      lease_expires_at = null,
      awaits = case when i.id = any (doomed) then null else i.awaits end,
      finished_at = case when i.id = any (doomed) then now() end,
      last_error = case
        when i.cancel_reason is not null then i.cancel_reason
        when i.crashes + 1 >= max_crashes then @schema.crash_loop_error(i.step, i.crashes + 1)
        else i.last_error
      end,
      unique_scope = case
        when case
          when i.cancel_reason is not null then 'cancelled' when i.crashes + 1 >= max_crashes then 'failed' else 'runnable'
        end::@schema.durable_status = any (i.unique_scope)
        then i.unique_scope else '{}'
      end,
      updated_at = now()
    where i.id = any (expired)
    returning i.id, i.fsm, i.fsm_version, i.step, i.queue, i.crashes, i.status = 'failed', null::bigint[], null::boolean;

  if doomed is not null then
    delete from @schema.signals s where s.target_id = any (doomed);
    select p.woken, p.cancel_children into woken, cancel_children from @schema.release_parents(doomed) as p;
  end if;
  -- Slots that their steps have asked for from inside.
  with d as (
    delete from @schema.step_slots s where s.instance_id = any (expired) returning s.slot_key
  )
  select freed || array_agg(distinct 'slot/' || d.slot_key) into freed from d;
  -- A row that came in meanwhile may be before the one that was taken back, whose queue has perhaps lost its worker.
  if freed is not null then
    woken := woken || @schema.unblock(freed, false);
  end if;
  return query
    select null::bigint, null::text, null::int, null::text, w.queue, null::int, null::boolean, w.parents, null::boolean
    from (
      select woken.queue, null::bigint[] as parents from unnest(woken) as woken (queue)
      union all select null, cancel_children where cancel_children is not null
    ) as w;
end
$$;
