-- require_valid_signals: raise 22023 if a signal to deliver breaks a bound of the docs (docs/reference/api.md).
--
-- Parameters: arrays of signal. As require_valid_starts.sql: the Python client has checked its values before, and sizes
-- are those of the text that Postgres writes.
-- Locks: none. Guarded by tests/store/test_signal_bounds.py.
create or replace function @schema.require_valid_signals(names text[], payloads jsonb[], dedup_keys text[])
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  problem text;
begin
  select found.problem into problem from (
    select case
      when (given.name ~ '^[A-Za-z0-9_.:-]{1,200}$') is not true
        then format('the name of a signal must be 1 to 200 characters out of A-Z a-z 0-9 _ . : - , got %s',
          coalesce(quote_literal(left(given.name, 80)), 'null'))
      when octet_length(given.dedup_key) not between 1 and 512
        then format('dedup_key must have 1 to 512 bytes, got %s', octet_length(given.dedup_key))
      when octet_length(given.payload::text) > 1500000
        then format('the payload is %s bytes of JSON, at most 1000000 are allowed', octet_length(given.payload::text))
      when pg_column_size(given.payload) > 450
        and jsonb_path_exists(given.payload, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")')
        then 'the payload is nested deeper than 64 levels'
    end as problem
    from (select unnest(names) as name, unnest(payloads) as payload, unnest(dedup_keys) as dedup_key) as given
  ) as found
  where found.problem is not null
  limit 1;
  if problem is not null then
    raise exception using errcode = '22023', message = problem;
  end if;
end
$$;
