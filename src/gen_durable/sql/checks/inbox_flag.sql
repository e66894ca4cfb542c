-- An instance has signals but its inbox flag is down: no claim would bring them along.
select distinct g.id, 'has signals, inbox is false' as problem
from @schema.gen_durable g join @schema.signals s on s.target_id = g.id where not g.inbox
