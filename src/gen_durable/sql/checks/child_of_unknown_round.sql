-- A child belongs to a round that its parent never began: the fan-out was not atomic.
select child.id, format('child of round %s of instance %s, which is in round %s', child.parent_round, parent.id, parent.round) as problem
from @schema.instances child join @schema.instances parent on parent.id = child.parent_id
where child.parent_round is null or child.parent_round > parent.round
