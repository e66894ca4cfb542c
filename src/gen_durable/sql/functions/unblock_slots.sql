-- unblock_slots: the part of unblock for concurrency limits whose gates are locked: as many rows as there are slots.
--
-- Each queue by itself: rows that are let back into a queue that no worker serves must not keep the slots from others. What
-- is let back too much is blocked again by the pick that finds it. Rows that could be picked already come first, but one
-- that nobody has picked in 5 s keeps nobody else from being let back: perhaps no worker knows its machine. The sweep
-- is cautious there, for perhaps no worker serves the queue: it lets one back, and the flush of that one the others.
-- A gate without a policy holds nobody.
-- Index: instances_limited, instances_slot, instances_slot_due.
create or replace function @schema.unblock_slots(gates text[], cautious boolean)
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
  bulk constant int := 1000;
  woken text[];
begin
  with room as materialized (
    select w.gate, w.queue, l.slots is not null as held, case
      when l.slots is null then bulk
      else least(l.slots - @schema.slots_taken(@schema.gate_key(w.gate), l.slots), bulk)
    end as slots
    from @schema.waiting_queues(gates) as w
    left join @schema.limits l
      on l.name = split_part(@schema.gate_key(w.gate), '/', 1) and l.kind = 'concurrency'
    where starts_with(w.gate, 'slot/')
  ),
  free as materialized (
    select b.place
    from room r
    cross join lateral (
      select count(*) as rows, count(*) filter (where d.updated_at > now() - interval '5 seconds') as fresh from (
        select d.updated_at from @schema.instances d
        where r.held and d.slot_key = @schema.gate_key(r.gate) and d.queue = r.queue
          and coalesce(d.due_at, 'infinity') <= now() and coalesce(d.due_at, 'infinity') < 'infinity'
        limit greatest(r.slots, 0)
      ) as d
    ) as due
    cross join lateral (
      select b.ctid as place from @schema.instances b
      where b.blocked_on = r.gate and not starts_with(b.blocked_on, 'partition/') and b.queue = r.queue
      order by b.priority, b.eligible_at, b.id
      limit greatest(least(r.slots - due.fresh, case when cautious and due.rows > 0 then 1 else bulk end), 0)
      for no key update skip locked
    ) as b
  ),
  u as (
    update @schema.instances i set blocked_on = null, updated_at = now() from free where i.ctid = free.place
    returning i.queue
  )
  select array_agg(distinct u.queue) into woken from u;
  return woken;
end
$$;
