-- A row is blocked on a gate that is not one of its own, or is blocked although it executes or has ended.
select i.id,
  format('status %s, partition key %s, slot %s, rate %s, blocked on %s', i.status, i.partition_key, i.slot_key, i.rate_key,
         i.blocked_on) as problem
from @schema.instances i
where i.blocked_on is not null
  and (i.status in ('executing', 'done', 'failed', 'cancelled')
       or i.token_at is not null
       or (i.blocked_on is distinct from 'partition/' || i.partition_key
           and i.blocked_on is distinct from 'slot/' || i.slot_key
           and i.blocked_on is distinct from 'rate/' || i.rate_key
           and not (i.status = 'runnable' and i.crashes >= 2
                    and i.blocked_on in ('crashed/' || i.queue, 'last_chance/' || i.queue))))
