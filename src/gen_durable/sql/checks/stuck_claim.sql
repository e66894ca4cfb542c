-- A lease ran out long ago and nobody took the claim back: no worker reaps this database.
select g.id, format('the lease of %s ran out %s ago', g.locked_by, date_trunc('second', now() - g.lease_expires_at)) as problem
from @schema.gen_durable g
where g.status = 'executing' and g.lease_expires_at < now() - interval '60 seconds'
