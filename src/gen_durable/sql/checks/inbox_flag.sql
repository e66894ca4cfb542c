-- An instance has signals but has_signals is false: no claim would bring them along.
select distinct i.id, 'has signals, has_signals is false' as problem
from @schema.instances i join @schema.signals s on s.target_id = i.id where not i.has_signals
