-- An ended instance has finished_at, another has none; a done one awaits nothing.
select i.id, format('%s with finished_at %s', i.status, i.finished_at) as problem
from @schema.instances i
where (i.status in ('done', 'failed', 'cancelled')) <> (i.finished_at is not null)
union all
select i.id, format('is done but awaits %s', i.awaits)
from @schema.instances i where i.status = 'done' and i.awaits is not null
