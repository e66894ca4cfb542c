-- slots_taken: how many slots of a concurrency limit are taken: by executing rows, and from inside steps (enter.sql).
--
-- In: the key; how many to count at most. Index: gen_durable_slot, gen_durable_slots_key.
create or replace function @schema.slots_taken(key text, most int)
returns bigint
language sql
set search_path = pg_catalog, pg_temp
as $$
  select (
    select count(*) from (
      select from @schema.gen_durable g where g.status = 'executing' and g.slot_key = slots_taken.key limit most
    ) as e
  ) + (
    select count(*) from @schema.gen_durable_slots s
    join @schema.gen_durable g on g.id = s.instance_id and g.claims = s.claim and g.lease_expires_at is not null
    where s.slot_key = slots_taken.key
  )
$$;
