-- claimable_rows: of the rows that a pick has found, those that it may claim: for `free` slots, and ahead of them.
--
-- Parameters: rows in the order in which they will run; how many of them start at once.
-- Returns the rows up to the first that must not be claimed ahead: one beyond the free slots that would hold a slot or a
-- token of a limit, or a partition key that other rows are blocked on, while it waits for a slot here; or one whose
-- worker died: had it been claimed ahead, its next crash would not be counted. Rows behind it are left too, or it would
-- wait for ever while they pass. `needs_slot` is true if rows were left.
-- Index: instances_blocked. Locks: none; the rows are the caller's.
-- Guarded by tests/store/test_claim_ahead.py and tests/worker/test_claim_ahead.py.
create or replace function @schema.claimable_rows(
  found_rows tid[], free int, out allowed tid[], out needs_slot boolean
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
  first_left constant int := (
    select given.ord
    from unnest(found_rows[free + 1 :]) with ordinality as given (place, ord)
    join @schema.instances i on i.ctid = given.place
    where i.slot_key is not null or i.rate_key is not null or i.crashes > 0 or i.claimed_ahead or exists (
      select from @schema.instances blocked
      where blocked.blocked_on = @schema.gate_name('partition', i.partition_key)
    )
    order by given.ord
    limit 1
  );
begin
  needs_slot := first_left is not null;
  allowed := case when needs_slot then found_rows[: free + first_left - 1] else found_rows end;
end
$$;
