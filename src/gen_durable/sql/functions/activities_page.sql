-- activities_page: a page of the activities that a visit has recorded, in their order: [[n, name, finished, result], ...].
--
-- Parameters: the instance and its visit; the number after which to begin; the most bytes of results, as text. A page
-- has at least one activity, however large; null if none is left. A result is JSON as text, as in journal_of_claim.sql.
-- Activities are read one by one, so that no page makes a text of all of them.
-- Index: primary key. Locks: none. Guarded by tests/store/test_claim_size.py.
create or replace function @schema.activities_page(instance bigint, at_visit bigint, after int, bytes bigint)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
  found record;
  total bigint := 0;
  entries jsonb[];
begin
  for found in
    select entry.n, entry.name, entry.error is null as finished, entry.result::text as result
    from @schema.activities entry
    where entry.instance_id = instance and entry.visit = at_visit and entry.n > after
    order by entry.instance_id, entry.visit, entry.n
  loop
    total := total + coalesce(octet_length(found.result), 0);
    exit when total > bytes and entries is not null;
    entries := array_append(entries, jsonb_build_array(found.n, found.name, found.finished, found.result));
  end loop;
  return to_jsonb(entries);
end
$$;
