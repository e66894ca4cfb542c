-- Nothing is written down of what has not happened: no transition or visit is numbered above its instance's outcomes.
select i.id, format('%s %s, but seq %s', j.what, j.number, i.seq) as problem
from (
  select t.instance_id, 'transition' as what, max(t.seq) as number from @schema.transitions t group by t.instance_id
  union all select c.instance_id, 'a checkpoint of visit', c.visit from @schema.checkpoints c
  union all select a.instance_id, 'an activity of visit', max(a.visit) from @schema.activities a group by a.instance_id
  union all select i.id, 'visit', i.visit from @schema.instances i
) as j
join @schema.instances i on i.id = j.instance_id
where j.number > i.seq
