-- gc: delete ended instances past their retention.
--
-- Parameters: how many seconds to keep each kind of end (null for ever) of machines that declare no retention
-- (declare_retentions.sql); the most rows to delete; how many of the oldest to leave out, because they fail the statement
-- (engine/skipping_batch_runner.py); after, the time of the first end to visit; min_age, how many seconds ago an instance
-- must have ended to be visited (null for the shortest of the three).
-- Returns how many were deleted; visited_until, the `after` of the next call; more, whether rows past their retention
-- may be left after that. So rows that are kept are not visited again by each call: those of a kind with a longer
-- retention, and children of a parent that has not ended. A caller with several retentions calls it once for each, with
-- this min_age and an `after` of its own (engine/gc.py). Rows with a keep_seconds of their own are left to
-- gc_rows_with_own_retention.sql. A call visits at most 1,000 rows more than it may delete, and those that ended in the same
-- moment. visited_until stays a minute behind the retention: a transaction that began earlier may commit an end with an
-- older time. An ended child is kept while its parent has not ended: the parent may still read it. A trigger deletes the
-- signals (delete_signals_trg.sql).
-- Index: instances_finished; primary keys of the parents and of retentions. Locks: the rows, SKIP LOCKED (tests/interleavings:
-- gc_signal).
create or replace function @schema.gc(
  keep_done float8, keep_failed float8, keep_cancelled float8, batch int, skip int default 0,
  after timestamptz default null, min_age float8 default null, out deleted int, out visited_until timestamptz, out more boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
  past constant timestamptz := now() - make_interval(
    secs => coalesce(min_age, least(keep_done, keep_failed, keep_cancelled))
  );
  visit_from constant timestamptz := coalesce(after, '-infinity');
  visit_until timestamptz;
begin
  select i.finished_at into visit_until from @schema.instances i
  where i.finished_at >= visit_from and i.finished_at < past and i.keep_seconds is null
  order by i.finished_at
  offset batch + 1000 limit 1;
  if visit_until = visit_from then
    select i.finished_at into visit_until from @schema.instances i
    where i.finished_at > visit_from and i.finished_at < past and i.keep_seconds is null
    order by i.finished_at
    limit 1;
  end if;

  with old as materialized (
    select i.ctid as place, i.finished_at from @schema.instances i
    left join @schema.retentions declared on declared.fsm = i.fsm
    where i.finished_at >= visit_from and i.finished_at < coalesce(visit_until, past) and i.keep_seconds is null
      and i.finished_at < now() - make_interval(secs => case
        when declared.fsm is null then case i.status
          when 'done' then keep_done when 'failed' then keep_failed when 'cancelled' then keep_cancelled
        end
        else case i.status
          when 'done' then declared.done when 'failed' then declared.failed when 'cancelled' then declared.cancelled
        end
      end)
      and not exists (
        select from @schema.instances parent where parent.id = i.parent_id and parent.finished_at is null
      )
    order by i.finished_at
    offset skip
    limit batch
    for update of i skip locked
  ),
  gone as (
    delete from @schema.instances i using old where i.ctid = old.place  -- a ctid cannot change under the lock
    returning old.finished_at
  )
  select count(*), max(gone.finished_at) into deleted, visited_until from gone;
  more := deleted = batch or visit_until is not null;
  if deleted < batch then
    visited_until := coalesce(visit_until, past);
  end if;
  visited_until := coalesce(least(visited_until, past - interval '1 minute'), after);
end
$$;
