-- A parked instance names what it waits for.
select g.id, 'awaiting_signal without names' as problem
from @schema.gen_durable g where g.status = 'awaiting_signal' and coalesce(cardinality(g.awaits), 0) = 0
