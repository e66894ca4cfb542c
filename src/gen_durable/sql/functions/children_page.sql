-- children_page: a page of the children of one round of a parent, in the order they were started, as a JSON array.
--
-- Parameters: the parent; its round, null for the current one; the id after which to begin; the size of the page, in
-- children and in bytes of their payloads. A page has at least one child, however large; null if none is left.
-- A claim or a page must stay far below 256 MB, the most that a jsonb array can hold: one that does not fit would fail
-- the pick. Stored sizes are known without reading the payloads. If they are small together and not compressed, every
-- child is read; else children are read up to the stored size of a page, and their texts are measured one by one.
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
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
  wanted constant bigint := coalesce(of_round, (select i.round from @schema.instances i where i.id = parent));
  stored_bytes bigint;
  is_compressed boolean;
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
  -- A text is at most some twenty times as long as its uncompressed jsonb (escapes, exponents).
  if not is_compressed and stored_bytes <= bytes / 20 then
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
  return (
    select jsonb_agg(
      jsonb_build_object(
        'id', child.id, 'machine', child.fsm, 'version', child.fsm_version, 'step', child.step, 'status', child.status,
        'last_error', child.last_error, 'result', child.result_text, 'state', child.state_text
      )
    )
    from (
      select text_row.*, sum(text_row.size) over (rows unbounded preceding) as total
      from (
        select near.*, octet_length(near.state_text) + coalesce(octet_length(near.result_text), 0)
          + coalesce(octet_length(near.last_error), 0) as size
        from (
          select stored.id, stored.fsm, stored.fsm_version, stored.step, stored.status, stored.last_error,
                 stored.result::text as result_text, stored.state::text as state_text
          from (
            select found.*, sum(found.size) over (rows unbounded preceding) as total
            from (
              select i.id, i.fsm, i.fsm_version, i.step, i.status, i.last_error, i.result, i.state,
                     pg_column_size(i.state) + coalesce(pg_column_size(i.result), 0) as size
              from @schema.instances i
              where i.parent_id = parent and i.parent_round = wanted and i.id > after
              order by i.parent_id, i.parent_round, i.id
              limit count
            ) as found
          ) as stored
          where stored.total <= bytes or stored.total = stored.size
          offset 0
        ) as near
      ) as text_row
    ) as child
    where child.total <= bytes or child.total = child.size
  );
end
$$;
