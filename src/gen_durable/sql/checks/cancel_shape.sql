-- An instance is to be cancelled but nobody runs it: nobody will end it.
select i.id, format('is %s and to be cancelled', i.status) as problem
from @schema.instances i where i.cancel_reason is not null and i.finished_at is null and i.status <> 'executing'
