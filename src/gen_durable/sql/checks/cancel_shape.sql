-- An instance is to be cancelled but nobody runs it: nobody will end it.
select g.id, format('is %s and to be cancelled', g.status) as problem
from @schema.gen_durable g where g.cancel_reason is not null and g.finished_at is null and g.status <> 'executing'
