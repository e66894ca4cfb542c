-- A row is blocked on something that it does not wait for.
select g.id, format('status %s, partition key %s, blocked on %s', g.status, g.partition_key, g.blocked_on) as problem
from @schema.gen_durable g
where g.blocked_on is not null
  and (g.status in ('executing', 'done', 'failed', 'cancelled')
       or g.blocked_on is distinct from 'partition/' || g.partition_key)
