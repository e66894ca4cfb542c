-- fire_timeouts: move the deadlines of parked instances to now.
--
-- Parameter: an id, or null for all. Returns the ids of the instances that had a deadline.
-- Index: none needed. Locks: the rows.
update @schema.instances i set await_deadline = now()
where ($1::bigint is null or i.id = $1)
  and i.status in ('awaiting_signal', 'awaiting_children') and i.await_deadline is not null
returning i.id
