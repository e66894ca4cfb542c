-- Nothing is written down of what has not happened: no transition or visit is numbered above its instance's outcomes.
select g.id, format('%s %s, but seq %s', j.what, j.number, g.seq) as problem
from (
  select t.instance_id, 'transition' as what, max(t.seq) as number from @schema.transitions t group by t.instance_id
  union all select c.instance_id, 'a checkpoint of visit', c.visit from @schema.checkpoints c
  union all select a.instance_id, 'an activity of visit', max(a.visit) from @schema.activities a group by a.instance_id
  union all select g.id, 'visit', g.visit from @schema.gen_durable g
) as j
join @schema.gen_durable g on g.id = j.instance_id
where j.number > g.seq
