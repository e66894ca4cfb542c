-- lock_other_due_rows: lock every due row except one. During the transaction, pick (SKIP LOCKED) can claim only that one.
--
-- Parameter: the id to leave unlocked. Index: instances_pick. Locks: the rows, until the rollback of the transaction.
select from @schema.instances i where i.due_at <= now() and i.id <> $1 order by i.id for no key update
