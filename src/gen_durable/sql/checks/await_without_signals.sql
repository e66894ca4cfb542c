-- A parked instance awaits no signal.
select i.id, 'awaiting_signal without names' as problem
from @schema.instances i where i.status = 'awaiting_signal' and coalesce(cardinality(i.awaits), 0) = 0
