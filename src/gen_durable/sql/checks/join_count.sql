-- A parent waits for another number of children than are still alive in its round.
select p.id, format('children_pending is %s, alive are %s', p.children_pending, c.alive) as problem
from @schema.instances p
cross join lateral (
  select count(*) as alive from @schema.instances c
  where c.parent_id = p.id and c.parent_round = p.round and c.finished_at is null
) as c
where p.status = 'awaiting_children' and p.children_pending <> c.alive
