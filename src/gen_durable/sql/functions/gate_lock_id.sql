-- gate_lock_id: the id of the advisory lock of a gate ('partition/KEY', 'slot/KEY', 'rate/KEY').
--
-- There are 2,048 ids per schema: a transaction may lock hundreds of gates, and the server has space for a few thousand
-- locks in total. Two gates with the same id sometimes wait for each other, without further effect.
create or replace function @schema.gate_lock_id(gate text)
returns bigint
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select (hashtextextended('@schema', 0) & ~2047::bigint) | (hashtextextended(gate, 0) & 2047)
$$;
