-- children_page: a page of the children of one round of a parent, in the order they were started, as a JSON array.
--
-- Parameters: the parent; its round, null for the current one; the id after which to begin; the size of the page.
-- Index: instances_parent, in its order: no page is sorted, and none reads the rows of the pages before it. Locks:
-- none.
create or replace function @schema.children_page(parent bigint, of_round int, after bigint, count int)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
  wanted constant int := coalesce(of_round, (select i.round from @schema.instances i where i.id = parent));
begin
  return (
    select jsonb_agg(
      jsonb_build_object(
        'id', c.id, 'machine', c.fsm, 'version', c.fsm_version, 'step', c.step, 'status', c.status,
        'last_error', c.last_error, 'result', c.result::text, 'state', c.state::text
      )
    )
    from (
      select * from @schema.instances c
      where c.parent_id = parent and c.parent_round = wanted and c.id > after
      order by c.parent_id, c.parent_round, c.id
      limit count
    ) as c
  );
end
$$;
