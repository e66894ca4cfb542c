-- unlocked: which of the given rows nobody else holds a lock on at this moment. flush asks when it ran into its
-- lock_timeout, to set aside the outcomes whose row or parent is held by a long transaction.
-- Index: primary key. Locks: SKIP LOCKED, given back at once with the statement's transaction.
create or replace function @schema.unlocked(ids bigint[])
returns table (id bigint)
language sql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select i.id from @schema.instances i where i.id = any (ids) order by i.id for no key update skip locked
$$;
