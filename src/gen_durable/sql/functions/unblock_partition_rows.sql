-- unblock_partition_rows: the part of unblock for partition keys: unblock the first row of each key that no row executes.
--
-- Parameter: keys whose gates this transaction has locked. Returns the queues of the unblocked rows.
-- A blocked row stays blocked while another row of its key executes, is due before it, or waits for a limit: such a row
-- was admitted by the key, and later rows must not pass it.
-- Index: instances_blocked (first blocked row), instances_partition (executing), instances_partition_order (due
-- before), instances_partition_admitted. Locks: the rows with SKIP LOCKED.
-- Guarded by tests/store/test_partition.py, test_no_waiting.py.
create or replace function @schema.unblock_partition_rows(keys text[])
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
  woken_queues text[];
begin
  with next_row as materialized (
    select first_blocked.id
    from unnest(keys) as freed (key)
    cross join lateral (
      select i.id, i.priority, i.eligible_at from @schema.instances i
      where i.blocked_on = @schema.gate_name('partition', freed.key) order by i.priority, i.eligible_at, i.id limit 1
    ) as first_blocked
    where not exists (select from @schema.instances i where i.status = 'executing' and i.partition_key = freed.key)
      and not exists (
        select from @schema.instances i
        where i.partition_key = freed.key and i.due_at <= now()
          and (i.priority, i.due_at, i.id) < (first_blocked.priority, first_blocked.eligible_at, first_blocked.id)
      )
      and not exists (
        select from @schema.instances i
        where i.partition_key = freed.key and (i.token_at is not null or not starts_with(i.blocked_on, 'partition/'))
      )
  ),
  locked_row as materialized (
    select i.ctid as tid from next_row join @schema.instances i on i.id = next_row.id for no key update of i skip locked
  ),
  unblocked as (
    update @schema.instances i set blocked_on = null from locked_row where i.ctid = locked_row.tid returning i.queue
  )
  select array_agg(distinct unblocked.queue) into woken_queues from unblocked;
  return woken_queues;
end
$$;
