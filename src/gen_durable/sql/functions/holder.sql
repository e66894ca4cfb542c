-- holder: the id of the instance that holds a unique key; null: nobody does. Index: gen_durable_unique.
create or replace function @schema.holder(key bytea)
returns bigint
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select g.id from @schema.gen_durable g where g.unique_guard = holder.key
$$;
