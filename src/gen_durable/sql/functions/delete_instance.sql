-- delete_instance: delete one ended instance.
--
-- Parameters: an id or, where that is null, a unique key (id_of_key.sql).
-- Returns one row: its id, its status, whether it was deleted, and waiting: a parent that has not ended, for which the
-- child is kept, as by gc. Returns no row if the instance does not exist.
-- Index: primary key, instances_unique, instances_key. Locks: the row (tests/interleavings: retry_remove).
create or replace function @schema.delete_instance(instance bigint, key bytea default null)
returns table (id bigint, was text, deleted boolean, waiting bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
  target constant bigint := coalesce(instance, @schema.id_of_key(key));
  old record;
begin
  select i.id, i.status::text as status, i.finished_at is not null as ended, i.parent_id into old
  from @schema.instances i
  where i.id = target
  for update;
  if not found then
    return;
  end if;
  id := old.id;
  was := old.status;
  select parent.id into waiting from @schema.instances parent
  where parent.id = old.parent_id and parent.finished_at is null;
  deleted := old.ended and waiting is null;
  if deleted then
    delete from @schema.instances i where i.id = old.id;
  end if;
  return next;
end
$$;

comment on function @schema.delete_instance(bigint, bytea) is
  'Deletes one ended instance with its signals and journal: select * from gen_durable.delete_instance(42).';
