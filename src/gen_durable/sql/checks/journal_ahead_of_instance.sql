-- A transition or a visit has a higher number than the outcomes of its instance: the journal must not run ahead.
select i.id, format('%s %s, but seq %s', entry.what, entry.number, i.seq) as problem
from (
  select transition.instance_id, 'transition' as what, max(transition.seq) as number from @schema.transitions transition group by transition.instance_id
  union all select checkpoint.instance_id, 'a checkpoint of visit', checkpoint.visit from @schema.checkpoints checkpoint
  union all select activity.instance_id, 'an activity of visit', max(activity.visit) from @schema.activities activity group by activity.instance_id
  union all select i.id, 'visit', i.visit from @schema.instances i
) as entry
join @schema.instances i on i.id = entry.instance_id
where entry.number > i.seq
