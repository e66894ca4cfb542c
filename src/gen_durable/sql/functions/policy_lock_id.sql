-- policy_lock_id: the second half of the id of a policy's advisory lock; the first half is the hash of the schema.
--
-- Parameter: the key of a limit, 'NAME' or 'NAME/PARTITION'; all partitions share the policy.
-- A session that admits rows by a policy holds the lock shared; a session that changes the policy holds it alone. So no
-- session admits rows by an old policy after the change has committed.
-- Guarded by tests/interleavings/test_limits.py (test_policy_pick_fewer_slots).
create or replace function @schema.policy_lock_id(key text)
returns int
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select hashtext(split_part(key, '/', 1))
$$;
