-- A signal's instance does not exist.
select signal.target_id as id, format('signal %s has no instance', signal.id) as problem
from @schema.signals signal
where not exists (select from @schema.instances i where i.id = signal.target_id)
