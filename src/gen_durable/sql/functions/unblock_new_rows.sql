-- unblock_new_rows: look again at rows that were inserted as blocked, after the commit of their insert.
--
-- Parameters, in parallel: the ids of the rows, and the gates that they wait for. Returns the queues of unblocked rows.
-- A gate that became free while the insert was under way was freed by a transaction that did not see its rows. If a new
-- row is the first to wait at its gate (of its queue, at the gate of a limit), this function locks the gate and unblocks
-- what may run: a transaction that is freeing the gate holds its lock, so its end is awaited. A row behind another needs
-- no such look: the row before it has yet to run, and the transaction that ends that one sees both.
-- Index: primary key, instances_blocked, instances_limited. Locks: as unblock.
-- Guarded by tests/interleavings/test_busy_gates.py.
create or replace function @schema.unblock_new_rows(ids bigint[], gates text[])
returns text[]
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
  first_gates text[];
begin
  perform @schema.require_max_elements(greatest(cardinality(ids), cardinality(gates)));
  first_gates := array(
    select distinct given.gate
    from unnest(ids, gates) as given (id, gate)
    cross join lateral (
      select i.queue from @schema.instances i where i.id = given.id and i.blocked_on = given.gate
    ) as new_row
    where given.id = case
      when starts_with(given.gate, 'partition/') then (
        select i.id from @schema.instances i
        where i.blocked_on = given.gate order by i.priority, i.eligible_at, i.id limit 1
      )
      else (
        select i.id from @schema.instances i
        where i.blocked_on = given.gate and not starts_with(i.blocked_on, 'partition/') and i.queue = new_row.queue
        order by i.priority, i.eligible_at, i.id limit 1
      )
    end
  );
  return case when cardinality(first_gates) > 0 then @schema.unblock(first_gates, true) end;
end
$$;
