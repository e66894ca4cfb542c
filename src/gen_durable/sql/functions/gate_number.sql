-- gate_number: the advisory lock of a partition key.
--
-- One of 2048 for each schema: a transaction may deal with hundreds of keys, and the server has room for some thousand
-- locks altogether. Two keys that share a number now and then wait for each other, no more.
create or replace function @schema.gate_number(key text)
returns bigint
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select (hashtextextended('@schema', 0) & ~2047::bigint) | (hashtextextended(key, 0) & 2047)
$$;
