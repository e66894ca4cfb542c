-- cancel_requests_of: the claims of a worker with a pending cancel request, and the reasons.
--
-- Parameters: ids and epochs. Index: primary key. Locks: none.
create or replace function @schema.cancel_requests_of(ids bigint[], claims bigint[])
returns table (id bigint, reason text)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
  select i.id, i.cancel_reason
  from unnest(ids, claims) as given (id, epoch)
  join @schema.instances i on i.id = given.id and i.claims = given.epoch
  where i.cancel_reason is not null and i.lease_expires_at is not null
    and @schema.require_max_elements(greatest(cardinality(ids), cardinality(cancel_requests_of.claims)), 100000)
$$;
