-- An executing instance has a worker and a lease, and no other has.
select i.id, format('%s, locked_by %s, lease until %s', i.status, i.locked_by, i.lease_expires_at) as problem
from @schema.instances i
where (i.status = 'executing') <> (i.locked_by is not null)
   or (i.status = 'executing') <> (i.lease_expires_at is not null)
