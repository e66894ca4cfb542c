-- rejected_signals: a page of the rejected signals of all instances, by instance and age. Columns as in signals_of.sql.
--
-- Parameters: the instance and the signal after which to begin; the most signals to return; whether to return payloads.
-- A login that may not read all instances sees signals of those that it has inserted (may_read_column.sql).
-- Index: signals_rejected. Locks: none.
create or replace function @schema.rejected_signals(
  after_target bigint default 0, after_signal bigint default 0, max_signals int default 1000,
  payloads boolean default false
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
    s.id, s.target_id, i.fsm, s.name, 'rejected', s.inserted_at, s.size, s.dedup_key, s.rejection,
    case
      when payloads and ((select @schema.may_read_column('state')) or coalesce(i.inserted_by = (select @schema.session_login()), false))
        then s.payload
    end
  from @schema.signals s
  join @schema.instances i on i.id = s.target_id
  where s.rejection is not null and (s.target_id, s.id) > (after_target, after_signal)
    and ((select @schema.may_read_column('id')) or i.inserted_by = (select @schema.session_login()))
  order by s.target_id, s.id
  limit max_signals
$$;

comment on function @schema.rejected_signals(bigint, bigint, int, boolean) is
  'Returns signals that no worker could read: select id, target_id, name, reason from gen_durable.rejected_signals().';
