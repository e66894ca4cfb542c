-- forget_buckets: buckets that have been full for an hour go: one that is absent is full. Returns how many went.
create or replace function @schema.forget_buckets()
returns bigint
language sql
set search_path = pg_catalog, pg_temp
as $$
  with d as (
    delete from @schema.gen_durable_buckets b where b.drained_until < now() - interval '1 hour' returning 1
  )
  select count(*) from d
$$;
