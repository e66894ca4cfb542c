-- lock_fair_rows: due rows of one queue and priority, shared equally among the groups that have some.
--
-- Parameters: the queue and priority; `known` as in pick; how many rows; the kind of groups; the group served last;
-- rows that this pick has found already.
-- Returns the rows found, locked; whether one of them has a partition key, a limit or a crash; the group served last now;
-- whether the search was cut short, so that there may be more.
-- The search visits groups in the order of their names, from the one after the last, round to it, until enough of them
-- have work or too many had none. Each then gets an equal share; the shares that some leave are for the others.
-- Rows without a group of this kind share one turn. They are found among the thousand oldest only: every row of a fair
-- queue should have a group.
-- Index: instances_group, stepping from group to group; instances_pick. Locks: as pick.
-- Guarded by tests/store/test_guards.py (test_groups_take_turns_in_the_order_of_their_names, ...).
create or replace function @schema.lock_fair_rows(
  queue_name text, level_priority int, known text[], demand int, kind text, previous_group text, already_found tid[],
  out found_rows tid[], out has_gates boolean, out last_group text, out is_cut_short boolean
)
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
  lowest constant text := kind || '/';   -- also stands for the rows without a group
  highest constant text := kind || '0';
  origin constant text := coalesce(previous_group, lowest);
  this_group text := origin;
  groups_with_work text[] := '{}';
  ungrouped tid[];
  is_second_half boolean := false;  -- the last group was passed, and the search goes on with the first
  visited int := 0;
  share int;
  group_rows tid[];
  group_has_gates boolean;
begin
  is_cut_short := false;
  loop
    select i.group_key into this_group from @schema.instances i
    where i.queue = queue_name and i.priority = level_priority and i.due_at is not null and i.group_key is not null
      and i.group_key > this_group and i.group_key < highest
    order by i.group_key limit 1;
    if not found then
      exit when is_second_half;
      is_second_half := true;
      this_group := lowest;
      ungrouped := array(
        select oldest.ctid from (
          select i.ctid, i.group_key from @schema.instances i
          where i.queue = queue_name and i.priority = level_priority and i.due_at <= now()
          order by i.due_at, i.id limit 1000
        ) as oldest
        where oldest.group_key is null or not starts_with(oldest.group_key, lowest)
      );
      continue when cardinality(ungrouped) = 0;
      groups_with_work := groups_with_work || lowest;
    else
      exit when is_second_half and this_group > origin;
      visited := visited + 1;
      if exists (
        select from @schema.instances i
        where i.queue = queue_name and i.priority = level_priority and i.group_key = this_group and i.due_at <= now()
      ) then
        groups_with_work := groups_with_work || this_group;
      end if;
    end if;
    last_group := this_group;
    if cardinality(groups_with_work) >= demand or visited >= 4 * demand + 100 then
      is_cut_short := true;
      exit;
    end if;
  end loop;

  found_rows := '{}';
  has_gates := false;
  share := ceil(demand::float8 / greatest(cardinality(groups_with_work), 1));
  for sharing in 1..2 loop  -- equal shares, then the rest
    foreach this_group in array groups_with_work loop
      exit when demand <= 0;
      select array_agg(candidate.ctid), bool_or(candidate.has_gates) into group_rows, group_has_gates
      from (
        select i.ctid, coalesce(i.partition_key, i.slot_key, i.rate_key) is not null or i.crashes > 0
          or i.claimed_ahead as has_gates
        from @schema.instances i
        where i.queue = queue_name and i.priority = level_priority and i.group_key = this_group and i.due_at <= now()
          and @schema.qualified_step_name(i.fsm, i.fsm_version, i.step) = any (known)
          and i.ctid <> all (already_found || found_rows)
        order by i.due_at, i.id
        limit least(share, demand)
        for no key update skip locked
      ) as candidate;
      if this_group = lowest then
        select array_agg(candidate.ctid), bool_or(candidate.has_gates) into group_rows, group_has_gates
        from (
          select i.ctid, coalesce(i.partition_key, i.slot_key, i.rate_key) is not null or i.crashes > 0
            or i.claimed_ahead as has_gates
          from @schema.instances i
          where i.ctid = any (ungrouped) and i.due_at <= now()
            and @schema.qualified_step_name(i.fsm, i.fsm_version, i.step) = any (known)
            and i.ctid <> all (already_found || found_rows)
          order by i.due_at, i.id
          limit least(share, demand)
          for no key update skip locked
        ) as candidate;
      end if;
      found_rows := found_rows || group_rows;
      has_gates := has_gates or coalesce(group_has_gates, false);
      demand := demand - coalesce(cardinality(group_rows), 0);
    end loop;
    share := demand;
  end loop;
end
$$;
