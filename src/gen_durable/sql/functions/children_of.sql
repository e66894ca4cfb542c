-- children_of: the children of one round of a parent, in the order they were started, as a JSON array.
--
-- Returns true if there are more than 10,000: a claim with them would be slow and large, so the parent reads them page
-- by page (children_page.sql).
create or replace function @schema.children_of(parent bigint, of_round bigint)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
  page constant jsonb := @schema.children_page(parent, of_round, 0, 10001);
begin
  return case when jsonb_array_length(page) > 10000 then 'true' else page end;
end
$$;
