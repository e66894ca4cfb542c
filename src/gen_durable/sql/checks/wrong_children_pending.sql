-- children_pending of a parent differs from the number of live children in its round.
select parent.id, format('children_pending is %s, alive are %s', parent.children_pending, child.alive) as problem
from @schema.instances parent
cross join lateral (
  select count(*) as alive from @schema.instances child
  where child.parent_id = parent.id and child.parent_round = parent.round and child.finished_at is null
) as child
where parent.status = 'awaiting_children' and parent.children_pending <> child.alive
