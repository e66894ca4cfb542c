-- look: instances as a test wants to see them, oldest first.
--
-- In: an id, a unique key, a machine's name (each null: any); whether ended instances are left out. A key finds its
-- instances also after they have let go of it. Out: one row per instance; due_in is in seconds, null when nothing but an
-- event can make the row run.
-- Index: none is needed, throw-away schemas are small. Locks: none.
select
  g.id, g.fsm, g.fsm_version, g.step, g.status::text, g.queue, g.partition_key, g.unique_key, g.awaits, g.attempt,
  g.crashes, g.last_error, g.locked_by, g.children_pending,
  extract(epoch from g.due_at - now())::float8 as due_in,
  array(select s.name from @schema.signals s where s.target_id = g.id and not s.consumed order by s.id) as inbox,
  g.state, g.result
from @schema.gen_durable g
where ($1::bigint is null or g.id = $1)
  and ($2::bytea is null or g.unique_key = $2)
  and ($3::text is null or g.fsm = $3)
  and (not $4::boolean or g.finished_at is null)
order by g.id
