-- delete_tickets_of_dead_claims: delete the tickets of limits inside steps (acquire_step_limit.sql) whose claim has ended.
--
-- Such a ticket does not count as a slot (count_taken_slots.sql), so deleting it frees nothing; it only takes space.
-- Index: step_slots_instance; the primary key of instances. Locks: tickets, SKIP LOCKED.
-- Guarded by tests/store/test_acquire_limit.py (test_the_ticket_of_a_dead_claim_counts_nowhere).
create or replace function @schema.delete_tickets_of_dead_claims()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
  delete from @schema.step_slots slot where slot.ticket = any (array(
    select slot.ticket from @schema.step_slots slot
    where not exists (
      select from @schema.instances i
      where i.id = slot.instance_id and i.claims = slot.claim and i.lease_expires_at is not null
    )
    for update skip locked
  ));
end
$$;
