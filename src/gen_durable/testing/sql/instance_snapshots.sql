-- instance_snapshots: instances as a test sees them, oldest first.
--
-- Parameters: an id, a unique key, a machine's name (null matches all); whether ended instances are left out. A key also
-- finds instances that no longer hold it. Returns one row per instance; due_in is in seconds, null if only an event can
-- make the row runnable.
-- Index: none is needed, throw-away schemas are small. Locks: none.
select
  i.id, i.fsm, i.fsm_version, i.step, i.status::text, i.queue, i.partition_key, i.unique_key, i.awaits, i.attempt,
  i.crashes, i.last_error, i.locked_by, i.children_pending,
  extract(epoch from i.due_at - now())::float8 as due_in,
  array(select s.name from @schema.signals s where s.target_id = i.id and not s.consumed order by s.id) as inbox,
  i.state, i.result
from @schema.instances i
where ($1::bigint is null or i.id = $1)
  and ($2::bytea is null or i.unique_key = $2)
  and ($3::text is null or i.fsm = $3)
  and (not $4::boolean or i.finished_at is null)
order by i.id
