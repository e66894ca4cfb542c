-- cancel_skipping_refused_rows: end_or_request_cancel past rows that the database does not let change, because a trigger or a
-- constraint of the user raises an error for them. A refused batch is halved until the row is alone.
--
-- Parameters: as for end_or_request_cancel; the children of all rows are cancelled too. Returns as end_or_request_cancel;
-- refused, the ids that were left as they are, and refusal, the SQLSTATE of one of them.
-- Index and locks: as end_or_request_cancel.
-- Guarded by tests/store/test_cascade.py.
create or replace function @schema.cancel_skipping_refused_rows(
  ids bigint[], reasons text[], origins bigint[],
  out ended bigint[], out requested bigint[], out woken_queues text[], out cascade_origins bigint[],
  out workers_with_cancel_requests text[], out freed_gates text[], out refused bigint[], out refusal text
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  size constant int := cardinality(ids);
  half constant int := size / 2;
  other record;
begin
  begin
    select * into ended, requested, woken_queues, cascade_origins, workers_with_cancel_requests, freed_gates
    from @schema.end_or_request_cancel(ids, reasons, array_fill(true, array[size]), origins);
    return;
  exception when others then
    if not @schema.is_permanent_error(sqlstate) then
      raise;
    end if;
    refusal := sqlstate;
  end;
  if size = 1 then
    refused := ids;
    return;
  end if;
  select * into ended, requested, woken_queues, cascade_origins, workers_with_cancel_requests, freed_gates, refused, refusal
  from @schema.cancel_skipping_refused_rows(ids[:half], reasons[:half], origins[:half]);
  select * into other
  from @schema.cancel_skipping_refused_rows(ids[half + 1:], reasons[half + 1:], origins[half + 1:]);
  ended := ended || other.ended;
  requested := requested || other.requested;
  woken_queues := woken_queues || other.woken_queues;
  cascade_origins := cascade_origins || other.cascade_origins;
  workers_with_cancel_requests := workers_with_cancel_requests || other.workers_with_cancel_requests;
  freed_gates := freed_gates || other.freed_gates;
  refused := refused || other.refused;
  refusal := coalesce(refusal, other.refusal);
end
$$;
