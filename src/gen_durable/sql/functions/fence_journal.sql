-- fence_journal: the fence of everything that a step writes before its outcome.
--
-- In: id, claim and seq, as the step was given them. Out: the visit; null: the claim is not the writer's any more, or its
-- step has been left. The row stays locked until the write is committed, so nobody takes the claim in between
-- (tests/interleavings: reap_checkpoint).
-- Index: primary key. Locks: the row.
create or replace function @schema.fence_journal(instance bigint, claim int, outcomes int)
returns int
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
declare
  found_visit int;
  flagged boolean;
begin
  select i.visit, i.has_journal into found_visit, flagged from @schema.instances i
  where i.id = instance and i.claims = claim and i.seq = outcomes
  for no key update;
  if not flagged then
    update @schema.instances i set has_journal = true where i.id = instance;
  end if;
  return found_visit;
end
$$;
