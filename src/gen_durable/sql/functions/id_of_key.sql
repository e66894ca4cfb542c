-- id_of_key: the id of the instance that holds a unique key, or null. Index: instances_unique. Locks: none.
create or replace function @schema.id_of_key(key bytea)
returns bigint
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
  select i.id from @schema.instances i where i.unique_guard = id_of_key.key
$$;

comment on function @schema.id_of_key(bytea) is
  'Returns the id of the instance that holds a unique key, or null: select gen_durable.id_of_key(''order-42'').';
