-- gc: delete ended instances past their retention.
--
-- Parameters: how many seconds to keep each kind of end (null for ever); the most rows to delete; how many of the oldest
-- to leave out, because they fail the statement (engine/batch_runner.py). Returns how many were deleted.
-- An ended child is kept while its parent has not ended: the parent may still read it. A trigger deletes the signals
-- (delete_signals_trg.sql).
-- Index: instances_finished; primary key for the parents. Locks: the rows, SKIP LOCKED (tests/interleavings:
-- gc_signal).
create or replace function @schema.gc(keep_done float8, keep_failed float8, keep_cancelled float8, batch int, skip int default 0)
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
        select from @schema.instances parent where parent.id = i.parent_id and parent.finished_at is null
      )
    order by i.finished_at
    offset skip
    limit batch
    for update skip locked
  )
  delete from @schema.instances i using old where i.ctid = old.place;  -- a ctid cannot change under the lock
  get diagnostics deleted = row_count;
  return deleted;
end
$$;
