-- inbox_of: the unconsumed signals of an instance, oldest first, as a JSON array.
--
-- Signals beyond 64 MB of payloads are left out: the claim must be readable whatever is in the inbox. signal.sql delivers
-- no more than that.
-- Index: signals_inbox. Locks: none. Guarded by tests/store/test_claim_size.py.
create or replace function @schema.inbox_of(target bigint)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
declare
  last_id bigint := 9223372036854775807;  -- of the signals that fit
begin
  if (select sum(s.size) from @schema.signals s where s.target_id = target and not s.consumed) > 64000000 then
    select coalesce(max(fitting.id), 0) into last_id
    from (
      select s.id, s.size, sum(s.size) over (order by s.id rows unbounded preceding) as total
      from @schema.signals s
      where s.target_id = target and not s.consumed
    ) as fitting
    where fitting.total <= 64000000 or fitting.total = fitting.size;
  end if;
  return (
    select jsonb_agg(
      jsonb_build_object(
        'id', signal.id, 'name', signal.name, 'payload', signal.payload::text,
        'at', extract(epoch from signal.inserted_at)
      ) order by signal.id + 0  -- not the plain column: a planner with old statistics would walk the primary key
    )
    from @schema.signals signal
    where signal.target_id = target and not signal.consumed and signal.id + 0 <= last_id
  );
end
$$;
