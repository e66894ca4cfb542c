-- A parent waits at an open barrier: no child is left, enough are done, or too few are left.
select i.id, format('awaiting_children with children_pending %s and children_needed %s', i.children_pending, i.children_needed) as problem
from @schema.instances i
where i.status = 'awaiting_children'
  and (i.children_pending < coalesce(i.children_needed, 1) or i.children_needed <= 0)
