-- ids_of_own_instances: the ids in their order, with null in place of instances that this login has not inserted.
--
-- A row changes its login never, so it is read without a lock. Index: primary key. Locks: none.
create or replace function @schema.ids_of_own_instances(ids bigint[])
returns bigint[]
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
  select array_agg(i.id order by given.ord)
  from unnest(ids) with ordinality as given (id, ord)
  left join @schema.instances i on i.id = given.id and i.inserted_by = (select @schema.session_login())
$$;
