-- id_of_key: the id of the instance that a unique key finds, or null: the holder of the key, else the last instance that
-- was inserted with it, by id.
--
-- The holder comes first: an insert that waited for a key may have a lower id than an earlier holder. A login that may
-- not read all instances finds those that it has inserted (may_read_column.sql).
-- Index: instances_unique, then instances_key. Locks: none.
create or replace function @schema.id_of_key(key bytea)
returns bigint
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
as $$
begin
  return coalesce(
    (
      select i.id from @schema.instances i
      where i.unique_guard = id_of_key.key
        and ((select @schema.may_read_column('id')) or i.inserted_by = (select @schema.session_login()))
    ),
    (
      select i.id from @schema.instances i
      where i.unique_key = id_of_key.key
        and ((select @schema.may_read_column('id')) or i.inserted_by = (select @schema.session_login()))
      order by i.id desc
      limit 1
    )
  );
end
$$;

comment on function @schema.id_of_key(bytea) is
  'Returns the id of the instance that holds a unique key, else of the last one inserted with it, or null: '
  'select gen_durable.id_of_key(''order-42'').';
