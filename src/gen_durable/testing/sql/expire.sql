-- expire: let the lease of a claim be over, as if its worker had died long ago. The reaper finds it then.
--
-- In: id and claim. Out: the id, if the claim still stands. Index: primary key. Locks: the row.
update @schema.gen_durable g set lease_expires_at = now() - interval '1 second'
where g.id = $1 and g.claims = $2 and g.status = 'executing'
returning g.id
