-- limit_lock_key: the second key of a policy's advisory lock, which has two integers; the first is the schema's hash.
--
-- Parameter: the key of a limit, 'NAME' or 'NAME/PARTITION'; all partitions share the policy.
-- A session that admits rows by a policy holds the lock shared; a session that changes the policy holds it alone. So no
-- session admits rows by an old policy after the change has committed.
-- Guarded by tests/interleavings/test_limits.py (test_policy_pick_fewer_slots).
create or replace function @schema.limit_lock_key(key text)
returns int
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select hashtext(split_part(key, '/', 1))
$$;
