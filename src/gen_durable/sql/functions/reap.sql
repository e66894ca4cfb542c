-- reap: take back claims whose lease has run out; fail those that have crashed too often.
--
-- In: how many at most; after how many crashes a row is failed (null: never). Out: the rows taken back, and whether
-- each was failed.
-- Every worker runs this; there is no leader. It acts on row truth alone.
-- Index: gen_durable_lease. Locks: id order, SKIP LOCKED; then the parents of failed rows in id order
-- (tests/interleavings: reap_flush).
create or replace function @schema.reap(batch int, max_crashes int default null)
returns table (id bigint, fsm text, fsm_version int, step text, queue text, crashes int, dead boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  expired bigint[];
  doomed bigint[];
begin
  select array_agg(e.id) into expired
  from (
    select g.id from @schema.gen_durable g
    where g.id in (
      select x.id from @schema.gen_durable x
      where x.status = 'executing' and x.lease_expires_at < now() order by x.lease_expires_at limit batch
    ) and g.status = 'executing' and g.lease_expires_at < now()
    order by g.id
    for no key update skip locked
  ) as e;
  if expired is null then
    return;
  end if;

  select array_agg(g.id) into doomed from @schema.gen_durable g
  where g.id = any (expired) and g.crashes + 1 >= max_crashes;
  if doomed is not null then
    perform from @schema.gen_durable p
    where p.id in (select c.parent_id from @schema.gen_durable c where c.id = any (doomed))
    order by p.id for no key update;
  end if;

  return query
    update @schema.gen_durable g set
      status = case when g.crashes + 1 >= max_crashes then 'failed' else 'runnable' end::@schema.durable_status,
      claims = g.claims + 1,
      crashes = g.crashes + 1,
      attempt = g.attempt + 1,
      eligible_at = now(),
      locked_by = null,
      lease_expires_at = null,
      finished_at = case when g.crashes + 1 >= max_crashes then now() end,
      last_error = case
        when g.crashes + 1 >= max_crashes
        then format('crash loop: step %s ended %s times without an outcome (its worker died or lost its lease)',
                    g.step, g.crashes + 1)
        else g.last_error
      end,
      unique_scope = case
        when case when g.crashes + 1 >= max_crashes then 'failed' else 'runnable' end::@schema.durable_status
          = any (g.unique_scope)
        then g.unique_scope else '{}'
      end,
      updated_at = now()
    where g.id = any (expired)
    returning g.id, g.fsm, g.fsm_version, g.step, g.queue, g.crashes, g.status = 'failed';

  if doomed is not null then
    delete from @schema.signals s where s.target_id = any (doomed);
    perform @schema.join_up(doomed);
  end if;
end
$$;
