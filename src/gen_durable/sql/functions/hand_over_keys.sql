-- hand_over_keys: the part of hand_over for partition keys whose gates are locked: of each that nobody runs, the first.
--
-- Index: gen_durable_blocked, gen_durable_partition, gen_durable_partition_order, gen_durable_partition_ahead.
create or replace function @schema.hand_over_keys(keys text[])
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
      select b.id, b.priority, b.eligible_at from @schema.gen_durable b
      where b.blocked_on = 'partition/' || k.key order by b.priority, b.eligible_at, b.id limit 1
    ) as b
    where not exists (select from @schema.gen_durable e where e.status = 'executing' and e.partition_key = k.key)
      and not exists (
        select from @schema.gen_durable h
        where h.partition_key = k.key and h.due_at <= now()
          and (h.priority, h.due_at, h.id) < (b.priority, b.eligible_at, b.id)
      )
      and not exists (
        select from @schema.gen_durable a
        where a.partition_key = k.key and (a.token_at is not null or not starts_with(a.blocked_on, 'partition/'))
      )
  ),
  free as materialized (
    select g.ctid as place from heads h join @schema.gen_durable g on g.id = h.id for no key update of g skip locked
  ),
  u as (
    update @schema.gen_durable g set blocked_on = null from free where g.ctid = free.place returning g.queue
  )
  select array_agg(distinct u.queue) into woken from u;
  return woken;
end
$$;
