-- A parked instance has a matching signal that its parking step did not receive: the delivery did not wake it.
select i.id, format('waits for %s although signal %s has come', i.awaits, signal.id) as problem
from @schema.instances i
join @schema.signals signal on signal.target_id = i.id and not signal.consumed and signal.name = any (i.awaits)
where i.status = 'awaiting_signal' and signal.id <> all (coalesce(i.seen, '{}'))
