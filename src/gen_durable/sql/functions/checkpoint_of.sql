-- checkpoint_of: the checkpoint of an instance's present visit, for whoever looks; by id or, where that is null, by its key.
-- Without its value for whoever may not see payloads (may_read.sql). Index: primary keys; instances_unique.
create or replace function @schema.checkpoint_of(instance bigint, key bytea default null)
returns table (format int, version int, updated_at timestamptz, value jsonb)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select c.format, c.version, c.updated_at, case when (select @schema.may_read('state')) then c.value else 'null' end
  from @schema.instances i
  join @schema.checkpoints c on c.instance_id = i.id and c.visit = i.visit
  where i.id = coalesce(instance, (select h.id from @schema.instances h where h.unique_guard = key))
$$;
