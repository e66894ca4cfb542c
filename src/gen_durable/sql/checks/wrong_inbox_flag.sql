-- An instance has signals but has_signals is false: its claims would not contain them.
select distinct i.id, 'has signals, has_signals is false' as problem
from @schema.instances i join @schema.signals signal on signal.target_id = i.id where not i.has_signals
