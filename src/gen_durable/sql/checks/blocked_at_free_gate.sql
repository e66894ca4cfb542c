-- A row is blocked although its gate is free, and no row before it will unblock it.
select blocked.id, format('blocked on %s, which is free', blocked.blocked_on) as problem
from (
  -- Rows with the same gate and queue wait alike: check one of them.
  select min(i.id) as id, i.blocked_on, i.queue, i.partition_key, i.slot_key, i.rate_key from @schema.instances i
  where i.blocked_on is not null
  group by i.blocked_on, i.queue, i.partition_key, i.slot_key, i.rate_key
) as blocked
where case
    when starts_with(blocked.blocked_on, 'partition/') then
      not exists (
        select from @schema.instances running where running.partition_key = blocked.partition_key and running.status = 'executing'
      )
      and not exists (
        select from @schema.instances ahead
        where ahead.partition_key = blocked.partition_key
          and (ahead.due_at <= now() or ahead.token_at is not null or not starts_with(ahead.blocked_on, 'partition/'))
      )
    when starts_with(blocked.blocked_on, 'slot/') then
      not exists (
        select from @schema.instances ahead where ahead.slot_key = blocked.slot_key and ahead.queue = blocked.queue and ahead.due_at <= now()
      )
      and @schema.count_taken_slots(blocked.slot_key, 1000000) < coalesce((
        select policy.slots from @schema.limits policy
        where policy.name = split_part(blocked.slot_key, '/', 1) and policy.kind = 'concurrency'
      ), 1000000)
    when starts_with(blocked.blocked_on, 'crashed/') or starts_with(blocked.blocked_on, 'last_chance/') then
      false  -- these gates are free whenever a worker picks
    else
      not exists (
        select from @schema.instances ahead
        where ahead.rate_key = blocked.rate_key and ahead.queue = blocked.queue and (ahead.due_at <= now() or ahead.token_at is not null)
      )
  end
