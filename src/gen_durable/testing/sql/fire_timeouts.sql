-- fire_timeouts: let the deadlines of parked instances be now.
--
-- In: an id; null: all. Out: the ids of the instances that had a deadline ahead.
-- Index: none is needed. Locks: the rows.
update @schema.instances i set await_deadline = now()
where ($1::bigint is null or i.id = $1)
  and i.status in ('awaiting_signal', 'awaiting_children') and i.await_deadline is not null
returning i.id
