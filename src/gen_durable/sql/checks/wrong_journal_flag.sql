-- An instance has a checkpoint, activities or progress but has_journal is false: its claims would not contain them.
select i.id, format('has %s, has_journal is false', entry.what) as problem
from (
  select checkpoint.instance_id, 'a checkpoint' as what from @schema.checkpoints checkpoint
  union all select distinct activity.instance_id, 'activities' from @schema.activities activity
  union all select distinct report.instance_id, 'progress' from @schema.progress report
) as entry
join @schema.instances i on i.id = entry.instance_id
where not i.has_journal
