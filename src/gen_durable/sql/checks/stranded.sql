-- A row is blocked although nobody keeps its gate from it, and nobody who may run before it will hand it over.
select b.id, format('blocked on %s, which is free', b.blocked_on) as problem
from (
  -- Rows that wait for the same in the same queue wait alike: one stands for all.
  select min(g.id) as id, g.blocked_on, g.queue, g.partition_key, g.slot_key, g.rate_key from @schema.gen_durable g
  where g.blocked_on is not null
  group by g.blocked_on, g.queue, g.partition_key, g.slot_key, g.rate_key
) as b
where case
    when starts_with(b.blocked_on, 'partition/') then
      not exists (
        select from @schema.gen_durable e where e.partition_key = b.partition_key and e.status = 'executing'
      )
      and not exists (
        select from @schema.gen_durable h
        where h.partition_key = b.partition_key
          and (h.due_at <= now() or h.token_at is not null or not starts_with(h.blocked_on, 'partition/'))
      )
    when starts_with(b.blocked_on, 'slot/') then
      not exists (
        select from @schema.gen_durable h where h.slot_key = b.slot_key and h.queue = b.queue and h.due_at <= now()
      )
      and @schema.slots_taken(b.slot_key, 1000000) < coalesce((
        select l.slots from @schema.gen_durable_limits l
        where l.name = split_part(b.slot_key, '/', 1) and l.kind = 'concurrency'
      ), 1000000)
    else
      not exists (
        select from @schema.gen_durable h
        where h.rate_key = b.rate_key and h.queue = b.queue and (h.due_at <= now() or h.token_at is not null)
      )
  end
