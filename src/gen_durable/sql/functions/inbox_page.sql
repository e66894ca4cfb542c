-- inbox_page: a page of the unconsumed signals of an instance, oldest first, as a JSON array.
--
-- Parameters: the instance; the id after which to begin; the most bytes of payloads; names, those to read, null for any;
-- without, names to leave out. A page has at least one signal, however large; null if none is left. It has at most 10,000.
-- Index: signals_inbox. Locks: none. Guarded by tests/store/test_claim_size.py.
create or replace function @schema.inbox_page(
  target bigint, after bigint, bytes bigint, names text[] default null, without text[] default '{}'
)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  last_id bigint;  -- of the signals that fit
begin
  perform @schema.require_max_elements(greatest(cardinality(names), cardinality(without)), 100000);
  select max(fitting.id) into last_id
  from (
    select s.id, s.size, sum(s.size) over (order by s.id rows unbounded preceding) as total
    from @schema.signals s
    where s.target_id = target and not s.consumed and s.id > after
      and (names is null or s.name = any (names)) and s.name <> all (without)
    order by s.id limit 10000
  ) as fitting
  where fitting.total <= bytes or fitting.total = fitting.size;
  return (
    select jsonb_agg(
      jsonb_build_object(
        'id', signal.id, 'name', signal.name, 'payload', signal.payload::text,
        'at', extract(epoch from signal.inserted_at)
      ) order by signal.id
    )
    from @schema.signals signal
    where signal.target_id = target and not signal.consumed and signal.id > after and signal.id <= last_id
      and (names is null or signal.name = any (names)) and signal.name <> all (without)
  );
end
$$;
