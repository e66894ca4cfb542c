-- Something in the journal has no instance.
select j.instance_id as id, format('%s of an instance that does not exist', j.what) as problem
from (
  select distinct t.instance_id, 'transitions' as what from @schema.transitions t
  union all select c.instance_id, 'a checkpoint' from @schema.checkpoints c
  union all select distinct a.instance_id, 'activities' from @schema.activities a
  union all select distinct p.instance_id, 'progress' from @schema.progress p
) as j
where not exists (select from @schema.instances i where i.id = j.instance_id)
