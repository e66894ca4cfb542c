-- A row is blocked although nobody of its partition key runs or may run before it.
select b.id, format('blocked on %s, which is free', b.blocked_on) as problem
from @schema.gen_durable b
where b.blocked_on is not null
  and not exists (
    select from @schema.gen_durable e where e.partition_key = b.partition_key and e.status = 'executing'
  )
  and not exists (
    select from @schema.gen_durable h where h.partition_key = b.partition_key and h.due_at <= now()
  )
