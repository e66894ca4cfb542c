-- delete_journal_trg: delete the journal of deleted instances. A trigger per statement, for any deletion (ADR 10).
--
-- Index: the primary keys of the journal's tables.
create or replace function @schema.delete_journal_trg()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  ids bigint[];
begin
  ids := array(select i.id from gone i where i.seq > 0 or i.claims > 1);
  delete from @schema.transitions transition where transition.instance_id = any (ids);
  ids := array(select i.id from gone i where i.has_journal);
  if cardinality(ids) > 0 then
    delete from @schema.checkpoints checkpoint where checkpoint.instance_id = any (ids);
    delete from @schema.activities activity where activity.instance_id = any (ids);
    delete from @schema.progress report where report.instance_id = any (ids);
  end if;
  return null;
end
$$;

create or replace trigger delete_journal_trg after delete on @schema.instances
referencing old table as gone for each statement execute function @schema.delete_journal_trg();
