-- A parked instance has a matching signal that its parking step was not shown: it should have been woken.
select g.id, format('waits for %s although signal %s has come', g.awaits, s.id) as problem
from @schema.gen_durable g
join @schema.signals s on s.target_id = g.id and not s.consumed and s.name = any (g.awaits)
where g.status = 'awaiting_signal' and s.id <> all (coalesce(g.seen, '{}'))
