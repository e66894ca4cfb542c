-- insert_if_key_free: insert one instance, given as an object, under a unique key, unless the key is taken.
--
-- Parameters: the key; start: an object as insert_instances_of_outcomes.sql takes it, of which only fsm and step are required; its
-- unique_scope is that of a live holder by default. Its unique_key is not read.
-- Returns the id, or null if the key is taken; an id in `start` can then be used again. The queue is not notified.
-- Index, locks: those of insert, which waits for a transaction that inserts the same key.
-- Guarded by tests/store/test_signal_or_start.py.
create or replace function @schema.insert_if_key_free(key bytea, start jsonb)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  new_id bigint;
begin
  select added.id into new_id
  from jsonb_to_record(start) as given (
    fsm text, version int, step text, state jsonb, queue text, priority smallint, partition_key text, delay float8,
    schedule_at timestamptz, unique_scope text, limits jsonb, group_key text, metadata jsonb, keep float8,
    signals jsonb, id bigint, trace_context text
  )
  cross join lateral @schema.insert(
    fsms => array[given.fsm],
    versions => array[coalesce(given.version, 1)],
    steps => array[given.step],
    states => array[coalesce(given.state, 'null')],
    queues => array[coalesce(given.queue, 'default')],
    priorities => array[given.priority],
    partition_keys => array[given.partition_key],
    delays => array[given.delay],
    schedule_ats => array[given.schedule_at],
    unique_keys => array[insert_if_key_free.key],
    unique_scopes => array[
      coalesce(given.unique_scope, '{runnable,executing,awaiting_signal,awaiting_children}')
    ],
    on_conflict => 'skip',
    limits => array_remove(array[given.limits], null),
    groups => array[given.group_key],
    metadatas => array[given.metadata],
    keeps => array[given.keep],
    signals => array_remove(array[given.signals], null),
    allocated_ids => array_remove(array[given.id], null),
    notify => false,
    trace_contexts => array_remove(array[given.trace_context], null)
  ) as added;
  if new_id is null and start ? 'id' then
    -- The caller may try again in this transaction: its holder may have ended by then.
    insert into @schema.allocated_ids (id, login)
    values ((start ->> 'id')::bigint, case when session_user <> current_user then @schema.session_login() end);
  end if;
  return new_id;
end
$$;
