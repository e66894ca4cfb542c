-- A row of the journal has no instance.
select entry.instance_id as id, format('%s of an instance that does not exist', entry.what) as problem
from (
  select distinct transition.instance_id, 'transitions' as what from @schema.transitions transition
  union all select checkpoint.instance_id, 'a checkpoint' from @schema.checkpoints checkpoint
  union all select distinct activity.instance_id, 'activities' from @schema.activities activity
  union all select distinct report.instance_id, 'progress' from @schema.progress report
) as entry
where not exists (select from @schema.instances i where i.id = entry.instance_id)
