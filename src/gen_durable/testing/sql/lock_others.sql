-- lock_others: lock every due row but one. While the transaction lasts, pick (SKIP LOCKED) can claim only that one.
--
-- In: the id to leave alone. Index: instances_pick. Locks: the rows, given back with the transaction's rollback.
select from @schema.instances i where i.due_at <= now() and i.id <> $1 order by i.id for no key update
