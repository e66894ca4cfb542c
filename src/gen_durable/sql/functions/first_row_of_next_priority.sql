-- first_row_of_next_priority: the first row of the next priority of a queue: pick steps from priority to priority with it.
--
-- Parameters: the queue; the priority before; the scan position of the next priority, [priority, due_at, id], or null.
-- Returns the priority, and due_at and id of its first row. With a position the search is confined to its priority and
-- begins there; due_at is null if no row is left above the position. Without one, priority is null if none is left.
-- Only this statement walks over the dead entries at the head of the index, so pick measures its time.
-- Index: instances_pick, under the planner settings of pick. Locks: none.
-- Guarded by tests/store/test_guards.py (test_a_pick_begins_at_the_lowest_row_above_its_scan_position).
create or replace function @schema.first_row_of_next_priority(
  queue_name text, previous int, scan_position jsonb, out priority int, out due_at timestamptz, out id bigint
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  if scan_position is not null then
    priority := (scan_position ->> 0)::int;
    select i.due_at, i.id into due_at, id from @schema.instances i
    where i.queue = queue_name and i.priority = (scan_position ->> 0)::int and i.due_at is not null
      and (i.due_at, i.id) >= ((scan_position ->> 1)::timestamptz, (scan_position ->> 2)::bigint)
    order by i.due_at, i.id limit 1;
  else
    select i.priority, i.due_at, i.id into priority, due_at, id from @schema.instances i
    where i.queue = queue_name and i.due_at is not null and i.priority > previous
    order by i.priority, i.due_at, i.id limit 1;
  end if;
end
$$;
