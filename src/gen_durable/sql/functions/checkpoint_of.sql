-- checkpoint_of: the checkpoint of the current visit of an instance.
--
-- Parameters: an id or, where that is null, a unique key (id_of_key.sql). The value is null for a login that may not read payloads
-- (may_read_column.sql).
-- Index: primary keys; instances_unique, instances_key. Locks: none.
create or replace function @schema.checkpoint_of(instance bigint, key bytea default null)
returns table (format int, version bigint, updated_at timestamptz, value jsonb)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select checkpoint.format, checkpoint.version, checkpoint.updated_at,
    case when (select @schema.may_read_column('state')) then checkpoint.value else 'null' end
  from @schema.instances i
  join @schema.checkpoints checkpoint on checkpoint.instance_id = i.id and checkpoint.visit = i.visit
  where i.id = coalesce(instance, (select @schema.id_of_key(key)))
$$;

comment on function @schema.checkpoint_of(bigint, bytea) is
  'Returns the checkpoint of the current step of an instance: select * from gen_durable.checkpoint_of(42).';
