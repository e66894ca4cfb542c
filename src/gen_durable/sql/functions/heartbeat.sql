-- heartbeat: extend the leases of the claims of a worker.
--
-- Parameters: ids and epochs in id order; the lease in seconds. Returns the ids whose claim was taken over.
-- A row that left executing by the worker's own outcome has the same claims and is not lost. A lease is never
-- shortened.
-- Index: primary key.
-- Locks: id order, SKIP LOCKED. The reaper skips a row that a flush or a delivery has locked as well, and the next
-- heartbeat comes well before the lease ends (tests/interleavings: reap_heartbeat).
create or replace function @schema.heartbeat(ids bigint[], claims bigint[], lease float8)
returns table (lost bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  locked_places tid[];
begin
  if greatest(cardinality(ids), cardinality(claims)) > 100000 then
    perform @schema.require_max_elements(greatest(cardinality(ids), cardinality(claims)), 100000);
  end if;
  select array_agg(locked_row.ctid) into locked_places
  from (
    select i.ctid
    from unnest(ids, claims) as given (id, epoch)
    join @schema.instances i on i.id = given.id and i.claims = given.epoch
    where i.lease_expires_at is not null
    order by i.id
    for no key update of i skip locked
  ) as locked_row;
  update @schema.instances i
  set lease_expires_at = greatest(i.lease_expires_at, now() + make_interval(secs => lease))
  where i.ctid = any (locked_places);

  return query
    select given.id
    from unnest(ids, claims) as given (id, epoch)
    left join @schema.instances i on i.id = given.id and i.claims = given.epoch
    where i.id is null;
end
$$;
