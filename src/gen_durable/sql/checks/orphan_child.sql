-- A child of a round that its parent never began: spawning was not atomic.
select c.id, format('child of round %s of instance %s, which is in round %s', c.parent_round, p.id, p.round) as problem
from @schema.instances c join @schema.instances p on p.id = c.parent_id
where c.parent_round is null or c.parent_round > p.round
