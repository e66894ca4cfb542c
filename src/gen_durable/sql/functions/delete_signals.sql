-- delete_signals: empty the inbox of an instance.
--
-- Parameters: an id or, where that is null, a unique key (id_of_key.sql); name: only signals of this name, null for all.
-- Deletes signals that were not consumed, rejected ones included; their dedup keys are free again. Consumed ones
-- with a dedup key stay, so what was handled is not handled again.
-- Returns one row: the instance, how many were deleted, and the queues to wake; no row if it does not exist.
-- A row that a deleted signal had woken, and that has not begun, waits again: without a signal its step would run as if
-- the timeout had passed. A step that executes keeps what it was given.
-- Index: primary keys, signals_inbox.
-- Locks: the row, then its gates (tests/interleavings: delete_signals_deliver).
create or replace function @schema.delete_signals(instance bigint, key bytea default null, name text default null)
returns table (id bigint, deleted bigint, woken_queues text[])
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
  select i.id, i.partition_key, i.slot_key into old from @schema.instances i
  where i.id = target
  for no key update;
  if not found then
    return;
  end if;
  id := old.id;
  with gone as (
    delete from @schema.signals s
    where s.target_id = old.id and (not s.consumed or s.rejection is not null)
      and (delete_signals.name is null or s.name = delete_signals.name)
    returning s.id
  )
  select count(*) into deleted from gone;
  update @schema.instances i set
    status = 'awaiting_signal',
    seen = '{}',
    token_at = null,
    blocked_on = null,
    unique_scope = @schema.unique_scope_for_status(i.unique_scope, 'awaiting_signal'),
    updated_at = now()
  where i.id = old.id and deleted > 0 and i.status = 'runnable' and i.awaits is not null and i.timed_out_claim is null
    and not exists (
      select from @schema.signals other
      where other.target_id = i.id and not other.consumed and other.name = any (i.awaits)
    );
  if found then
    woken_queues := @schema.unblock(array(
      select either.gate
      from (
        values (@schema.gate_name('partition', old.partition_key)), (@schema.gate_name('slot', old.slot_key))
      ) as either (gate)
      where either.gate is not null
    ), true);
  end if;
  return next;
end
$$;

comment on function @schema.delete_signals(bigint, bytea, text) is
  'Deletes the unread and rejected signals of an instance, all or those of one name: '
  'select deleted from gen_durable.delete_signals(42, name => ''payment'').';
