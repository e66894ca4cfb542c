-- unblock_partitions: the part of unblock for partition keys whose gates are locked: of each that nobody runs, the first.
--
-- Index: instances_blocked, instances_partition, instances_partition_order, instances_partition_admitted.
create or replace function @schema.unblock_partitions(keys text[])
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  woken text[];
begin
  with heads as materialized (
    select b.id
    from unnest(keys) as k (key)
    cross join lateral (
      select b.id, b.priority, b.eligible_at from @schema.instances b
      where b.blocked_on = @schema.gate('partition', k.key) order by b.priority, b.eligible_at, b.id limit 1
    ) as b
    where not exists (select from @schema.instances e where e.status = 'executing' and e.partition_key = k.key)
      and not exists (
        select from @schema.instances h
        where h.partition_key = k.key and h.due_at <= now()
          and (h.priority, h.due_at, h.id) < (b.priority, b.eligible_at, b.id)
      )
      and not exists (
        select from @schema.instances a
        where a.partition_key = k.key and (a.token_at is not null or not starts_with(a.blocked_on, 'partition/'))
      )
  ),
  free as materialized (
    select i.ctid as place from heads h join @schema.instances i on i.id = h.id for no key update of i skip locked
  ),
  u as (
    update @schema.instances i set blocked_on = null from free where i.ctid = free.place returning i.queue
  )
  select array_agg(distinct u.queue) into woken from u;
  return woken;
end
$$;
