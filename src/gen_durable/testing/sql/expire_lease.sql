-- expire_lease: let the lease of a claim expire, as if its worker had died. The next reap takes it back.
--
-- Parameters: id and epoch. Returns the id if the claim is current. Index: primary key. Locks: the row.
update @schema.instances i set lease_expires_at = now() - interval '1 second'
where i.id = $1 and i.claims = $2 and i.status = 'executing'
returning i.id
