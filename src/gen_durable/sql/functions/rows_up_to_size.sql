-- rows_up_to_size: the first of the rows that a pick has found, until their states come to `max_bytes`; at least one.
--
-- Parameters: rows in the order in which they will run. Returns those to claim, and the bytes of their states. Reads and
-- decompresses states one by one, so that it reads little more than what is claimed.
-- Index: none, rows are read by their place. Locks: none; the rows are the caller's.
-- Guarded by tests/store/test_claim_size.py.
create or replace function @schema.rows_up_to_size(
  found_rows tid[], max_bytes bigint, out allowed tid[], out bytes bigint
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  chosen int := 0;
begin
  bytes := 0;
  while bytes < max_bytes and chosen < cardinality(found_rows) loop
    chosen := chosen + 1;
    bytes := bytes + (
      select pg_column_size(i.state #> '{}')  -- the path makes it a copy that is not compressed
      from @schema.instances i where i.ctid = found_rows[chosen]
    );
  end loop;
  allowed := found_rows[: chosen];
end
$$;
