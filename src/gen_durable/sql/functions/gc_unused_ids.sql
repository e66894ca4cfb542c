-- gc_unused_ids: forget ids that were drawn more than a day ago and not used. They cannot be used afterwards.
--
-- Parameter: the most to visit. Visits the lowest ids, which are the oldest. Returns how many were deleted.
-- Index: primary key. Locks: the entries, SKIP LOCKED: an insert that uses one goes first (tests/interleavings:
-- gc_allocated_insert).
create or replace function @schema.gc_unused_ids(batch int)
returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
  deleted int;
begin
  with lowest as materialized (
    select allocated.id, allocated.allocated_at from @schema.allocated_ids allocated order by allocated.id limit batch
  ),
  old as materialized (
    select allocated.id from @schema.allocated_ids allocated
    where allocated.id = any (array(select lowest.id from lowest where lowest.allocated_at < now() - interval '1 day'))
    for update skip locked
  )
  delete from @schema.allocated_ids allocated using old where allocated.id = old.id;
  get diagnostics deleted = row_count;
  return deleted;
end
$$;
