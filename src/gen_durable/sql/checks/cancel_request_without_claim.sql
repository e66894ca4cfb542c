-- A row has a cancel request but does not execute: no worker will end it.
select i.id, format('is %s and has a cancel request', i.status) as problem
from @schema.instances i where i.cancel_reason is not null and i.finished_at is null and i.status <> 'executing'
