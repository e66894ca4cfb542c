-- A row is blocked although nobody keeps its gate from it, and nobody who may run before it will hand it over.
select b.id, format('blocked on %s, which is free', b.blocked_on) as problem
from (
  -- Rows that wait for the same in the same queue wait alike: one stands for all.
  select min(i.id) as id, i.blocked_on, i.queue, i.partition_key, i.slot_key, i.rate_key from @schema.instances i
  where i.blocked_on is not null
  group by i.blocked_on, i.queue, i.partition_key, i.slot_key, i.rate_key
) as b
where case
    when starts_with(b.blocked_on, 'partition/') then
      not exists (
        select from @schema.instances e where e.partition_key = b.partition_key and e.status = 'executing'
      )
      and not exists (
        select from @schema.instances h
        where h.partition_key = b.partition_key
          and (h.due_at <= now() or h.token_at is not null or not starts_with(h.blocked_on, 'partition/'))
      )
    when starts_with(b.blocked_on, 'slot/') then
      not exists (
        select from @schema.instances h where h.slot_key = b.slot_key and h.queue = b.queue and h.due_at <= now()
      )
      and @schema.slots_taken(b.slot_key, 1000000) < coalesce((
        select l.slots from @schema.limits l
        where l.name = split_part(b.slot_key, '/', 1) and l.kind = 'concurrency'
      ), 1000000)
    else
      not exists (
        select from @schema.instances h
        where h.rate_key = b.rate_key and h.queue = b.queue and (h.due_at <= now() or h.token_at is not null)
      )
  end
