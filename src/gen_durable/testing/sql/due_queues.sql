-- due_queues: the queues that have due rows, in an order that does not depend on the server's locale.
-- Index: gen_durable_pick. Locks: none.
select q.queue from (select distinct g.queue from @schema.gen_durable g where g.due_at <= now()) as q
order by q.queue collate "C"
