-- children_page: a page of the children of one round of a parent, in the order they were started, as a JSON array.
--
-- Parameters: the parent; its round, null for the current one; the id after which to begin; the size of the page.
-- Index: instances_parent, in its order: no page is sorted, and none reads the rows of the pages before it. Locks:
-- none.
create or replace function @schema.children_page(parent bigint, of_round bigint, after bigint, count int)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
  wanted constant bigint := coalesce(of_round, (select i.round from @schema.instances i where i.id = parent));
begin
  return (
    select jsonb_agg(
      jsonb_build_object(
        'id', child.id, 'machine', child.fsm, 'version', child.fsm_version, 'step', child.step, 'status', child.status,
        'last_error', child.last_error, 'result', child.result::text, 'state', child.state::text
      )
    )
    from (
      select * from @schema.instances child
      where child.parent_id = parent and child.parent_round = wanted and child.id > after
      order by child.parent_id, child.parent_round, child.id
      limit count
    ) as child
  );
end
$$;
