-- policy_lock_id: the second half of the advisory lock of a policy; the first is that of the schema.
--
-- Whoever grants by a policy holds it shared, whoever changes the policy holds it alone: after a change nobody grants by
-- what was before (tests/interleavings: policy_pick).
create or replace function @schema.policy_lock_id(key text)
returns int
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select hashtext(split_part(key, '/', 1))
$$;
