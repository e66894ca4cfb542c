-- A parked instance has a matching signal that its parking step was not shown: it should have been woken.
select i.id, format('waits for %s although signal %s has come', i.awaits, s.id) as problem
from @schema.instances i
join @schema.signals s on s.target_id = i.id and not s.consumed and s.name = any (i.awaits)
where i.status = 'awaiting_signal' and s.id <> all (coalesce(i.seen, '{}'))
