-- signals_of: the signals of an instance: unread ones first, then rejected ones, then consumed ones, oldest first.
--
-- Parameters: an id or, where that is null, a unique key (id_of_key.sql); the most signals to return; whether to return payloads.
-- Returns one row per signal; state is 'waiting', 'never_read' (its instance has ended), 'consumed' or 'rejected'.
-- A login that may not read all instances sees those that it has inserted (may_read_column.sql).
-- Index: signals_inbox, primary key. Locks: none.
create or replace function @schema.signals_of(
  instance bigint, key bytea default null, max_signals int default 1000, payloads boolean default false
)
returns table (
  id bigint, target_id bigint, machine text, name text, state text, inserted_at timestamptz, size int, dedup_key text,
  reason text, payload jsonb
)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select
    s.id, s.target_id, i.fsm, s.name,
    case
      when s.rejection is not null then 'rejected' when s.consumed then 'consumed'
      when i.finished_at is not null then 'never_read' else 'waiting'
    end,
    s.inserted_at, s.size, s.dedup_key, s.rejection,
    case
      when payloads and ((select @schema.may_read_column('state')) or coalesce(i.inserted_by = (select @schema.session_login()), false))
        then s.payload
    end
  from @schema.instances i
  join @schema.signals s on s.target_id = i.id
  where i.id = coalesce(instance, (select @schema.id_of_key(key)))
    and ((select @schema.may_read_column('id')) or i.inserted_by = (select @schema.session_login()))
  order by s.consumed, s.rejection is null, s.id
  limit max_signals
$$;

comment on function @schema.signals_of(bigint, bytea, int, boolean) is
  'Returns the signals of an instance, unread ones first: select name, state, reason from gen_durable.signals_of(42).';
