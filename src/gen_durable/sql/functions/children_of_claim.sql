-- children_of_claim: the children of one round of a parent, in the order they were started, as a JSON array.
--
-- Returns true if there are more than 10,000, or if their payloads are larger than 100 kB together: a pick is one statement
-- for all queues of a worker, and must stay short. The worker then reads them page by page (children_page.sql,
-- engine/claim_part_loader.py).
-- Index: instances_parent. Locks: none. Guarded by tests/store/test_claim_size.py.
create or replace function @schema.children_of_claim(parent bigint, of_round bigint)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  page constant jsonb := @schema.children_page(parent, of_round, 0, 10000, 100000);
begin
  if exists (
    select from @schema.instances child
    where child.parent_id = parent and child.parent_round = of_round and child.id > (page -> -1 ->> 'id')::bigint
  ) then
    return 'true';
  end if;
  return page;
end
$$;
