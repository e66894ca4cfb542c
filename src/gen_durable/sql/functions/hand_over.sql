-- hand_over: partition keys may have become free; let the next row of each back into the pick index.
--
-- In: keys; whether to wait for each (else those that another session is dealing with are left out). Out: the queues of
-- the rows let back.
-- Whoever takes a row out of executing calls this in the same transaction, as its last locks: nobody who holds a key's
-- lock waits for a row, so waiting here cannot deadlock. Therefore a head that a delivery has locked just now is left to
-- sweep. A row that a pick blocked in between is seen, for the pick had
-- the lock, and this asks after it (tests/interleavings: block_release).
-- Index: gen_durable_blocked, gen_durable_partition, gen_durable_partition_order. Locks: keys in the order of their
-- numbers.
create or replace function @schema.hand_over(keys text[], wait boolean)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  locked text[] := keys;
  woken text[];
begin
  if wait then
    perform pg_advisory_xact_lock(k.number)
    from (
      select distinct @schema.gate_number(k.key) as number from unnest(keys) as k (key) order by 1
    ) as k;
  else
    locked := array(
      select k.key from unnest(keys) as k (key) where pg_try_advisory_xact_lock(@schema.gate_number(k.key))
    );
  end if;

  with heads as materialized (
    select b.id
    from unnest(locked) as k (key)
    cross join lateral (
      select b.id, b.priority, b.eligible_at from @schema.gen_durable b
      where b.blocked_on = 'partition/' || k.key order by b.priority, b.eligible_at, b.id limit 1
    ) as b
    where not exists (select from @schema.gen_durable e where e.status = 'executing' and e.partition_key = k.key)
      and not exists (
        select from @schema.gen_durable h
        where h.partition_key = k.key and h.due_at <= now()
          and (h.priority, h.due_at, h.id) < (b.priority, b.eligible_at, b.id)
      )
  ),
  free as materialized (
    select g.ctid as place from heads h join @schema.gen_durable g on g.id = h.id for no key update of g skip locked
  ),
  u as (
    update @schema.gen_durable g set blocked_on = null from free where g.ctid = free.place returning g.queue
  )
  select array_agg(distinct u.queue) into woken from u;
  return woken;
end
$$;
