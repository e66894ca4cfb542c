-- expire: let the lease of a claim be over, as if its worker had died long ago. The reaper finds it then.
--
-- In: id and claim. Out: the id, if the claim still stands. Index: primary key. Locks: the row.
update @schema.instances i set lease_expires_at = now() - interval '1 second'
where i.id = $1 and i.claims = $2 and i.status = 'executing'
returning i.id
