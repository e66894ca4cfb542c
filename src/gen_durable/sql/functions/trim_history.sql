-- trim_history: delete old transitions and activities of instances that may never end.
--
-- Parameters: ids, and per id how many of its newest outcomes to keep; the most rows of each table to delete in all.
-- Returns the ids of which old rows may be left.
-- Kept are the transitions of the newest outcomes, the activities of the visits in which they were made, and those of
-- the current visit: a retry of the step reads them, however many outcomes ago the visit began. The transition of the
-- last outcome is always kept: reap asks for it.
-- Index: primary keys. Locks: the rows with SKIP LOCKED; the instance is not locked, since its seq and visit only grow.
-- Guarded by tests/store/test_trim_history.py.
create or replace function @schema.trim_history(ids bigint[], keeps int[], batch int)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  share constant int := greatest(batch / greatest(cardinality(ids), 1), 1);  -- the most rows per instance
  unfinished bigint[];
  unfinished_journals bigint[];
begin
  perform @schema.require_max_elements(greatest(cardinality(ids), cardinality(keeps)), 100000);
  with old as materialized (
    select i.id, found.place
    from unnest(ids, keeps) as given (id, keep)
    join @schema.instances i on i.id = given.id
    cross join lateral (
      select transition.ctid as place from @schema.transitions transition
      where transition.instance_id = i.id and transition.seq <= i.seq - greatest(given.keep, 1)
      order by transition.instance_id, transition.seq
      limit share
      for update skip locked
    ) as found
  ),
  deleted as (
    delete from @schema.transitions transition using old where transition.ctid = old.place
  )
  select array_agg(counted.id) into unfinished
  from (select old.id from old group by old.id having count(*) = share) as counted;

  with old as materialized (
    select i.id, found.place
    from unnest(ids, keeps) as given (id, keep)
    join @schema.instances i on i.id = given.id and i.has_journal
    cross join lateral (
      select activity.ctid as place from @schema.activities activity
      where activity.instance_id = i.id and activity.visit < least(i.visit, i.seq - given.keep)
      order by activity.instance_id, activity.visit, activity.n
      limit share
      for update skip locked
    ) as found
  ),
  deleted as (
    delete from @schema.activities activity using old where activity.ctid = old.place
  )
  select array_agg(counted.id) into unfinished_journals
  from (select old.id from old group by old.id having count(*) = share) as counted;
  return array(select distinct left_over.id from unnest(unfinished || unfinished_journals) as left_over (id));
end
$$;
