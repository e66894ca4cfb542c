-- gc: delete ended instances past their retention.
--
-- In: how many seconds each kind of end is kept (null: for good); how many at most. Out: how many were deleted.
-- An ended child of a parent that has not ended is spared: the parent may still read it. Signals go by a trigger (delete_signals_trg.sql).
-- Index: instances_finished; primary key for the parents. Locks: SKIP LOCKED; deletion by primary key
-- (tests/interleavings: gc_signal).
create or replace function @schema.gc(keep_done float8, keep_failed float8, keep_cancelled float8, batch int)
returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  deleted int;
begin
  with old as materialized (
    select i.ctid as place from @schema.instances i
    where i.finished_at < now() - make_interval(secs => least(keep_done, keep_failed, keep_cancelled))
      and i.finished_at < now() - make_interval(secs => case i.status
        when 'done' then keep_done when 'failed' then keep_failed when 'cancelled' then keep_cancelled
      end)
      and not exists (
        select from @schema.instances p where p.id = i.parent_id and p.finished_at is null
      )
    order by i.finished_at
    limit batch
    for update skip locked
  )
  delete from @schema.instances i using old where i.ctid = old.place;  -- which cannot change under the lock
  get diagnostics deleted = row_count;
  return deleted;
end
$$;
