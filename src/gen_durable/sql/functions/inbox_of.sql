-- inbox_of: the unconsumed signals of an instance, oldest first, as a JSON array. Index: signals_inbox. Locks: none.
create or replace function @schema.inbox_of(target bigint)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_agg(
    jsonb_build_object(
      'id', s.id, 'name', s.name, 'payload', s.payload::text, 'at', extract(epoch from s.inserted_at)
    ) order by s.id
  )
  from @schema.signals s
  where s.target_id = target and not s.consumed
$$;
