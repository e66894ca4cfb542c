-- An ended instance has finished_at, awaits nothing and has an empty inbox; another has no finished_at.
select i.id, format('%s with finished_at %s', i.status, i.finished_at) as problem
from @schema.instances i
where (i.status in ('done', 'failed', 'cancelled')) <> (i.finished_at is not null)
union all
select i.id, format('has ended but awaits %s', i.awaits)
from @schema.instances i where i.finished_at is not null and i.awaits is not null
union all
select distinct i.id, 'has ended but its inbox is not empty'
from @schema.instances i join @schema.signals signal on signal.target_id = i.id where i.finished_at is not null
