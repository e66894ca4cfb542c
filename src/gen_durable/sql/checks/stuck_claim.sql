-- A lease expired more than 60 s ago and the claim was not taken back: no worker reaps this database.
select i.id, format('the lease of %s ran out %s ago', i.locked_by, date_trunc('second', now() - i.lease_expires_at)) as problem
from @schema.instances i
where i.status = 'executing' and i.lease_expires_at < now() - interval '60 seconds'
