-- children_page: a page of the children of one round of a parent, in the order they were started, as a JSON array.
--
-- Parameters: the parent; its round, null for the current one; the id after which to begin; the size of the page, in
-- children and in bytes of their payloads. A page has at least one child, however large; null if none is left.
-- A claim or a page must stay far below 256 MB, the most that a jsonb array can hold: one that does not fit would fail
-- the pick. Stored sizes are known without reading the payloads. If they are small together and not compressed, every
-- child is read; else they are read one by one, until a page is full.
-- Index: instances_parent, in its order: no page is sorted, and none reads the rows of the pages before it. Locks:
-- none.
-- Guarded by tests/store/test_claim_size.py.
create or replace function @schema.children_page(
  parent bigint, of_round bigint, after bigint, count int, bytes bigint default 64000000
)
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
  wanted constant bigint := coalesce(of_round, (select i.round from @schema.instances i where i.id = parent));
  stored_bytes bigint;
  is_compressed boolean;
  row_read record;
  total bigint := 0;
  entries jsonb[];
begin
  select sum(pg_column_size(child.state) + coalesce(pg_column_size(child.result), 0) + coalesce(length(child.last_error), 0)),
         bool_or(coalesce(pg_column_compression(child.state), pg_column_compression(child.result)) is not null)
  into stored_bytes, is_compressed
  from (
    select i.state, i.result, i.last_error from @schema.instances i
    where i.parent_id = parent and i.parent_round = wanted and i.id > after
    order by i.parent_id, i.parent_round, i.id
    limit count
  ) as child;
  -- A text is seldom longer than its uncompressed jsonb, and some twenty times as long at most (escapes, exponents).
  if not is_compressed and stored_bytes <= bytes / 4 then
    return (
      select jsonb_agg(
        jsonb_build_object(
          'id', child.id, 'machine', child.fsm, 'version', child.fsm_version, 'step', child.step,
          'status', child.status, 'last_error', child.last_error, 'result', child.result::text,
          'state', child.state::text
        )
      )
      from (
        select * from @schema.instances child
        where child.parent_id = parent and child.parent_round = wanted and child.id > after
        order by child.parent_id, child.parent_round, child.id
        limit count
      ) as child
    );
  end if;
  for row_read in
    select i.id, i.fsm, i.fsm_version, i.step, i.status, i.last_error, i.result::text as result, i.state::text as state
    from @schema.instances i
    where i.parent_id = parent and i.parent_round = wanted and i.id > after
    order by i.parent_id, i.parent_round, i.id
    limit count
  loop
    total := total + octet_length(row_read.state) + coalesce(octet_length(row_read.result), 0)
      + coalesce(octet_length(row_read.last_error), 0);
    exit when total > bytes and entries is not null;
    entries := array_append(
      entries,
      jsonb_build_object(
        'id', row_read.id, 'machine', row_read.fsm, 'version', row_read.fsm_version, 'step', row_read.step,
        'status', row_read.status, 'last_error', row_read.last_error, 'result', row_read.result,
        'state', row_read.state
      )
    );
  end loop;
  return to_jsonb(entries);
end
$$;
