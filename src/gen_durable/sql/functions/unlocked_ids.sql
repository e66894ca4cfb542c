-- unlocked_ids: the given rows that no other session has locked at this moment. The committer calls it when flush ran
-- into its lock_timeout, to postpone the outcomes whose row or parent a long transaction has locked.
--
-- Index: primary key. Locks: SKIP LOCKED, released at once with the transaction of the statement.
create or replace function @schema.unlocked_ids(ids bigint[])
returns table (id bigint)
language sql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select i.id from @schema.instances i
  where i.id = any (ids) and @schema.require_max_elements(cardinality(ids), 100000)
  order by i.id for no key update skip locked
$$;
