-- An instance has signals but its inbox flag is down: no claim would bring them along.
select distinct i.id, 'has signals, inbox is false' as problem
from @schema.instances i join @schema.signals s on s.target_id = i.id where not i.inbox
