-- A signal's instance does not exist.
select s.target_id as id, format('signal %s has no instance', s.id) as problem
from @schema.signals s
where not exists (select from @schema.instances i where i.id = s.target_id)
