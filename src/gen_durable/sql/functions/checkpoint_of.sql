-- checkpoint_of: the checkpoint of an instance's present visit, for whoever looks; by id or, where that is null, by its key.
-- Without its value for whoever may not see payloads (entitled.sql). Index: primary keys; gen_durable_unique.
create or replace function @schema.checkpoint_of(instance bigint, key bytea default null)
returns table (format int, version int, updated_at timestamptz, value jsonb)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select c.format, c.version, c.updated_at, case when (select @schema.entitled('state')) then c.value else 'null' end
  from @schema.gen_durable g
  join @schema.checkpoints c on c.instance_id = g.id and c.visit = g.visit
  where g.id = coalesce(instance, (select h.id from @schema.gen_durable h where h.unique_guard = key))
$$;
