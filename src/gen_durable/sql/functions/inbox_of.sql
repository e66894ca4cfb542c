-- inbox_of: the unconsumed signals of an instance, oldest first, as a JSON array. Index: signals_inbox. Locks: none.
create or replace function @schema.inbox_of(target bigint)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
as $$
  select jsonb_agg(
    jsonb_build_object(
      'id', signal.id, 'name', signal.name, 'payload', signal.payload::text,
      'at', extract(epoch from signal.inserted_at)
    ) order by signal.id
  )
  from @schema.signals signal
  where signal.target_id = target and not signal.consumed
$$;
