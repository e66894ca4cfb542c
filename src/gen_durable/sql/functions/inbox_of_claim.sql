-- inbox_of_claim: the unconsumed signals of an instance, oldest first, as a JSON array, for the claim of the instance.
--
-- Returns true if their payloads are larger than 100 kB together, or if they are more than 10,000: a pick is one statement
-- for all queues of a worker, and must stay short. The worker then reads the inbox page by page (inbox_page.sql, engine/claim_part_loader.py).
-- Index: signals_inbox. Locks: none. Guarded by tests/store/test_claim_size.py.
create or replace function @schema.inbox_of_claim(target bigint)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
  if (
    select sum(s.size) > 100000 or count(*) > 10000 from @schema.signals s where s.target_id = target and not s.consumed
  ) then
    return 'true';
  end if;
  return (
    select jsonb_agg(
      jsonb_build_object(
        'id', signal.id, 'name', signal.name, 'payload', signal.payload::text,
        'at', extract(epoch from signal.inserted_at)
      ) order by signal.id + 0  -- not the plain column: a planner with old statistics would walk the primary key
    )
    from @schema.signals signal
    where signal.target_id = target and not signal.consumed
  );
end
$$;
