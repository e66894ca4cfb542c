-- id_bound_before_time: an id such that all rows inserted before a moment are below it, or null if there is no such bound.
--
-- Ids are allocated in the order of time, and inserted_at is the beginning of the transaction. If no transaction
-- inserts after having been open for an hour, all ids above a row that was inserted an hour after the moment are of
-- later rows. Found by bisection: in whatever order the rows are, the search ends at such a row.
-- Index: primary key, about forty rows of it. Locks: none.
create or replace function @schema.id_bound_before_time(moment timestamptz)
returns bigint
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  low bigint := (select min(i.id) from @schema.instances i);
  high bigint := (select max(i.id) from @schema.instances i);
  bound bigint;
  probe record;
begin
  if moment is null then
    return null;
  end if;
  while low <= high loop
    select i.id, i.inserted_at into probe
    from @schema.instances i where i.id >= low + (high - low) / 2 order by i.id limit 1;
    if probe.inserted_at >= moment + interval '1 hour' then
      bound := probe.id;
      high := low + (high - low) / 2 - 1;
    else
      low := probe.id + 1;
    end if;
  end loop;
  return bound;
end
$$;
