-- delete_signals_trg: signals go with their instance, whoever deletes it.
--
-- A trigger of the whole statement, not a foreign key: that would look up and lock the target of every signal once
-- more, which a delivery has locked already, and ask for signals at every row that retention deletes (ADR 10).
-- Index: signals_inbox.
create or replace function @schema.delete_signals_trg()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  delete from @schema.signals s where s.target_id = any (array(select i.id from gone i where i.has_signals));
  return null;
end
$$;

create or replace trigger delete_signals_trg after delete on @schema.instances
referencing old table as gone for each statement execute function @schema.delete_signals_trg();
