-- An instance that has ended has finished_at, waits for nothing and has an empty inbox; one that has not ended has none.
select g.id, format('%s with finished_at %s', g.status, g.finished_at) as problem
from @schema.gen_durable g
where (g.status in ('done', 'failed', 'cancelled')) <> (g.finished_at is not null)
union all
select g.id, format('has ended but awaits %s', g.awaits)
from @schema.gen_durable g where g.finished_at is not null and g.awaits is not null
union all
select distinct g.id, 'has ended but its inbox is not empty'
from @schema.gen_durable g join @schema.signals s on s.target_id = g.id where g.finished_at is not null
