-- A parent sleeps on a barrier that is open: nobody is left to wait for, or enough are done, or too few are left.
select g.id, format('awaiting_children with children_pending %s and children_needed %s', g.children_pending, g.children_needed) as problem
from @schema.gen_durable g
where g.status = 'awaiting_children'
  and (g.children_pending < coalesce(g.children_needed, 1) or g.children_needed <= 0)
