-- fire_timeouts: let the deadlines of parked instances be now.
--
-- In: an id; null: all. Out: the ids of the instances that had a deadline ahead.
-- Index: none is needed. Locks: the rows.
update @schema.gen_durable g set await_deadline = now()
where ($1::bigint is null or g.id = $1)
  and g.status in ('awaiting_signal', 'awaiting_children') and g.await_deadline is not null
returning g.id
