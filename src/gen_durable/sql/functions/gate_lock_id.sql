-- gate_lock_id: the advisory lock of a gate ('partition/KEY', 'slot/KEY', 'rate/KEY').
--
-- One of 2048 for each schema: a transaction may deal with hundreds of gates, and the server has room for some thousand
-- locks altogether. Two gates that share a number now and then wait for each other, no more.
create or replace function @schema.gate_lock_id(gate text)
returns bigint
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select (hashtextextended('@schema', 0) & ~2047::bigint) | (hashtextextended(gate, 0) & 2047)
$$;
