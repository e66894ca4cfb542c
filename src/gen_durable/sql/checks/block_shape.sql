-- A row is blocked on something that it does not wait for.
select g.id,
  format('status %s, partition key %s, slot %s, rate %s, blocked on %s', g.status, g.partition_key, g.slot_key, g.rate_key,
         g.blocked_on) as problem
from @schema.gen_durable g
where g.blocked_on is not null
  and (g.status in ('executing', 'done', 'failed', 'cancelled')
       or g.token_at is not null
       or (g.blocked_on is distinct from 'partition/' || g.partition_key
           and g.blocked_on is distinct from 'slot/' || g.slot_key
           and g.blocked_on is distinct from 'rate/' || g.rate_key))
