-- due_queues: the queues that have due rows, in an order that does not depend on the server's locale.
-- Index: instances_pick. Locks: none.
select q.queue from (select distinct i.queue from @schema.instances i where i.due_at <= now()) as q
order by q.queue collate "C"
