-- clear_checkpoint: delete the checkpoint of a step.
--
-- Parameters: the fence (lock_row_for_journal.sql). Returns false if the claim is lost and nothing was changed.
-- Index: primary keys. Locks: the instance.
create or replace function @schema.clear_checkpoint(instance bigint, epoch bigint, seq bigint)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
  if @schema.lock_row_for_journal(instance, epoch, seq) is null then
    return false;
  end if;
  delete from @schema.checkpoints checkpoint where checkpoint.instance_id = instance;
  return true;
end
$$;
