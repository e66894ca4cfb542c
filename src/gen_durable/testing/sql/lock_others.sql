-- lock_others: lock every due row but one. While the transaction lasts, pick (SKIP LOCKED) can claim only that one.
--
-- In: the id to leave alone. Index: gen_durable_pick. Locks: the rows, given back with the transaction's rollback.
select from @schema.gen_durable g where g.due_at <= now() and g.id <> $1 order by g.id for no key update
