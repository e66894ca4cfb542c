-- count_taken_slots: the number of slots in use of a concurrency limit: executing rows, and tickets of steps
-- (acquire_step_limit.sql).
--
-- Parameters: the key of the limit; `most`: stop counting executing rows there. A ticket counts while its claim lives.
-- Index: instances_slot, step_slots_key. Locks: none; callers hold the lock of the gate.
-- Guarded by tests/store/test_limits.py (test_so_many_at_a_time), test_acquire_limit.py.
create or replace function @schema.count_taken_slots(key text, most int)
returns bigint
language sql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  select (
    select count(*) from (
      select from @schema.instances i where i.status = 'executing' and i.slot_key = count_taken_slots.key limit most
    ) as executing
  ) + (
    select count(*) from @schema.step_slots slot
    join @schema.instances i on i.id = slot.instance_id and i.claims = slot.claim and i.lease_expires_at is not null
    where slot.slot_key = count_taken_slots.key
  )
$$;

comment on function @schema.count_taken_slots(text, int) is
  'Counts the taken slots of a concurrency limit, up to a maximum.';
