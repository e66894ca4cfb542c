-- slots_taken: how many slots of a concurrency limit are taken: by executing rows, and from inside steps (acquire_limit.sql).
--
-- In: the key; how many to count at most. Index: instances_slot, step_slots_key.
create or replace function @schema.slots_taken(key text, most int)
returns bigint
language sql
set search_path = pg_catalog, pg_temp
as $$
  select (
    select count(*) from (
      select from @schema.instances i where i.status = 'executing' and i.slot_key = slots_taken.key limit most
    ) as e
  ) + (
    select count(*) from @schema.step_slots s
    join @schema.instances i on i.id = s.instance_id and i.claims = s.claim and i.lease_expires_at is not null
    where s.slot_key = slots_taken.key
  )
$$;
