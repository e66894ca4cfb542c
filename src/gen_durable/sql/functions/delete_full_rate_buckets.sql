-- delete_full_rate_buckets: delete rate buckets that have been full for an hour; a missing bucket is full. Returns how
-- many.
--
-- Locks: SKIP LOCKED, since a pick locks several buckets in no particular order.
-- Guarded by tests/store/test_no_waiting.py.
create or replace function @schema.delete_full_rate_buckets()
returns bigint
language sql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  with deleted as (
    delete from @schema.rate_buckets bucket where bucket.key = any (array(
      select bucket.key from @schema.rate_buckets bucket
      where bucket.drained_until < now() - interval '1 hour' for update skip locked
    )) returning 1
  )
  select count(*) from deleted
$$;
