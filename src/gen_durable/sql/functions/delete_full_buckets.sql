-- delete_full_buckets: buckets that have been full for an hour go: one that is absent is full. Returns how many went.
-- Locks: SKIP LOCKED, for a pick takes from several buckets in an order of its own.
create or replace function @schema.delete_full_buckets()
returns bigint
language sql
set search_path = pg_catalog, pg_temp
as $$
  with d as (
    delete from @schema.rate_buckets b where b.key = any (array(
      select b.key from @schema.rate_buckets b
      where b.drained_until < now() - interval '1 hour' for update skip locked
    )) returning 1
  )
  select count(*) from d
$$;
