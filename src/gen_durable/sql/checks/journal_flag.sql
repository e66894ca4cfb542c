-- An instance has a checkpoint, activities or progress but has_journal is false: no claim would bring them along.
select i.id, format('has %s, has_journal is false', j.what) as problem
from (
  select c.instance_id, 'a checkpoint' as what from @schema.checkpoints c
  union all select distinct a.instance_id, 'activities' from @schema.activities a
  union all select distinct p.instance_id, 'progress' from @schema.progress p
) as j
join @schema.instances i on i.id = j.instance_id
where not i.has_journal
