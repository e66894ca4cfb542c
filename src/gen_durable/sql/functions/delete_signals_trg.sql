-- delete_signals_trg: delete the signals of deleted instances.
--
-- A trigger per statement serves any deletion. A foreign key would look up and lock the target of every signal once
-- more, which a delivery has already locked, and search for signals of every row that gc deletes (ADR 10).
-- Index: signals_inbox.
create or replace function @schema.delete_signals_trg()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
begin
  delete from @schema.signals signal where signal.target_id = any (array(select i.id from gone i where i.has_signals));
  return null;
end
$$;

create or replace trigger delete_signals_trg after delete on @schema.instances
referencing old table as gone for each statement execute function @schema.delete_signals_trg();
