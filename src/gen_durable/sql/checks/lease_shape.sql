-- An executing instance has an owner and a lease, and no other has.
select g.id, format('%s, locked_by %s, lease until %s', g.status, g.locked_by, g.lease_expires_at) as problem
from @schema.gen_durable g
where (g.status = 'executing') <> (g.locked_by is not null)
   or (g.status = 'executing') <> (g.lease_expires_at is not null)
