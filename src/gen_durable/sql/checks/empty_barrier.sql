-- A parent sleeps on a barrier with nobody left to wait for.
select g.id, 'awaiting_children with children_pending 0' as problem
from @schema.gen_durable g where g.status = 'awaiting_children' and g.children_pending <= 0
