-- unlocked: which of the given rows nobody else holds a lock on at this moment. flush asks when it ran into its
-- lock_timeout, to set aside the outcomes whose row or parent is held by a long transaction.
-- Index: primary key. Locks: SKIP LOCKED, given back at once with the statement's transaction.
create or replace function @schema.unlocked(ids bigint[])
returns table (id bigint)
language sql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select g.id from @schema.gen_durable g where g.id = any (ids) order by g.id for no key update skip locked
$$;
