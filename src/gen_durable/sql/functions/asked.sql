-- asked: which of a worker's claims are to be cancelled, and why. In: ids and claims. Index: primary key.
create or replace function @schema.asked(ids bigint[], claims int[])
returns table (id bigint, reason text)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
  select g.id, g.cancel_reason
  from unnest(ids, claims) as o (id, claim)
  join @schema.gen_durable g on g.id = o.id and g.claims = o.claim
  where g.cancel_reason is not null and g.lease_expires_at is not null
$$;
