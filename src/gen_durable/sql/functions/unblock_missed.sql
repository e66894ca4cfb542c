-- unblock_missed: the backstop of unblock. Goes through the gates that rows are blocked on, and hands over those that are free.
--
-- In: the gate after which to go on (null: from the first); how many at most. Out: the last gate looked at (null: all
-- were), and the queues of rows let back. It writes only where something is amiss.
-- Slots that a dead claim has asked for from inside its step do not count, and go here.
-- Index: instances_blocked, stepping from gate to gate.
create or replace function @schema.unblock_missed(after text, batch int, out last text, out woken text[])
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  gate text := coalesce(after, '');
  gates text[] := '{}';
begin
  if after is null then
    delete from @schema.step_slots s where s.ticket = any (array(
      select s.ticket from @schema.step_slots s
      where not exists (
        select from @schema.instances i
        where i.id = s.instance_id and i.claims = s.claim and i.lease_expires_at is not null
      )
      for update skip locked
    ));
  end if;
  for i in 1..batch loop
    select i.blocked_on into gate from @schema.instances i where i.blocked_on > gate order by i.blocked_on limit 1;
    exit when not found;
    gates := gates || gate;
  end loop;
  last := gate;  -- null when the last was reached
  if cardinality(gates) > 0 then
    woken := @schema.unblock(gates, false, true);
  end if;
end
$$;
