-- has_metadata_index: true if the optional index of metadata (metadata_index.sql) exists and is valid.
create or replace function @schema.has_metadata_index()
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  select coalesce(
    (select i.indisvalid from pg_index i where i.indexrelid = to_regclass('@schema.instances_metadata')), false
  )
$$;
