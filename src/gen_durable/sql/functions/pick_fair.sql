-- pick_fair: due rows of one queue and priority, going round the groups that have some.
--
-- In: the kind of groups; the group that had the last turn; how many rows; places that it has
-- taken already. Out: places of rows, locked; whether one of them has a key or a
-- limit; the group that had the last turn now; whether a round was cut short, so that there may be more.
-- Groups are asked in the order of their names, from the one after the last on and round to it, until there are enough of
-- them that have work, or too many were asked that have none. Then each gets an equal share; what some leave is for others.
-- Rows without a group of this kind have one turn together. They are found among the thousand oldest only: every row of a fair queue
-- should have a group.
-- Index: instances_group, stepping from group to group; instances_pick. Locks: as pick.
create or replace function @schema.pick_fair(
  q text, prio int, known text[], demand int, kind text, after text, taken tid[],
  out hits tid[], out keyed boolean, out last text, out more boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  bottom constant text := kind || '/';
  top constant text := kind || '0';
  origin constant text := coalesce(after, bottom);
  grp text := origin;
  busy text[] := '{}';
  loose tid[];           -- rows without a group
  round boolean := false;  -- the last group was passed, and it goes on with the first
  asked int := 0;
  share int;
  places tid[];
  has_key boolean;
begin
  more := false;
  loop
    select i.group_key into grp from @schema.instances i
    where i.queue = q and i.priority = prio and i.due_at is not null and i.group_key is not null
      and i.group_key > grp and i.group_key < top
    order by i.group_key limit 1;
    if not found then
      exit when round;
      round := true;
      grp := bottom;
      loose := array(
        select o.ctid from (
          select i.ctid, i.group_key from @schema.instances i
          where i.queue = q and i.priority = prio and i.due_at <= now() order by i.due_at, i.id limit 1000
        ) as o
        where o.group_key is null or not starts_with(o.group_key, bottom)
      );
      continue when cardinality(loose) = 0;
      busy := busy || bottom;
    else
      exit when round and grp > origin;
      asked := asked + 1;
      if exists (
        select from @schema.instances i
        where i.queue = q and i.priority = prio and i.group_key = grp and i.due_at <= now()
      ) then
        busy := busy || grp;
      end if;
    end if;
    last := grp;
    if cardinality(busy) >= demand or asked >= 4 * demand + 100 then
      more := true;
      exit;
    end if;
  end loop;

  hits := '{}';
  keyed := false;
  share := ceil(demand::float8 / greatest(cardinality(busy), 1));
  for turn in 1..2 loop
    foreach grp in array busy loop
      exit when demand <= 0;
      select array_agg(c.ctid), bool_or(c.keyed) into places, has_key
      from (
        select i.ctid, coalesce(i.partition_key, i.slot_key, i.rate_key) is not null as keyed
        from @schema.instances i
        where i.queue = q and i.priority = prio and i.group_key = grp and i.due_at <= now()
          and i.fsm || '/' || i.fsm_version || '/' || i.step = any (known) and i.ctid <> all (taken || hits)
        order by i.due_at, i.id
        limit least(share, demand)
        for no key update skip locked
      ) as c;
      if grp = bottom then
        select array_agg(c.ctid), bool_or(c.keyed) into places, has_key
        from (
          select i.ctid, coalesce(i.partition_key, i.slot_key, i.rate_key) is not null as keyed
          from @schema.instances i
          where i.ctid = any (loose) and i.due_at <= now()
            and i.fsm || '/' || i.fsm_version || '/' || i.step = any (known) and i.ctid <> all (taken || hits)
          order by i.due_at, i.id
          limit least(share, demand)
          for no key update skip locked
        ) as c;
      end if;
      hits := hits || places;
      keyed := keyed or coalesce(has_key, false);
      demand := demand - coalesce(cardinality(places), 0);
    end loop;
    share := demand;
  end loop;
end
$$;
