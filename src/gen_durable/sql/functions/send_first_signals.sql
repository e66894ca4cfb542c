-- send_first_signals: deliver the signals that instances are inserted with, in the transaction that inserts them.
--
-- Parameters: ids and signals: per row its id and null or an array of objects {"name", "payload", "dedup_key"}, of which
-- only the name is required. new_ids: the rows that were inserted; the others get nothing.
-- A row is not visible to others before the commit, so its first step finds them all in its inbox, in their order.
-- Raises 54000 if an inbox cannot take them all (signal.sql).
-- Index: those of signal. Locks: none beyond the new rows.
-- Guarded by tests/store/test_first_signals.py.
create or replace function @schema.send_first_signals(ids bigint[], signals jsonb[], new_ids bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  targets bigint[];
  names text[];
  payloads jsonb[];
  dedup_keys text[];
  refusal record;
begin
  select
    array_agg(start.id order by start.ord, first_signal.place),
    array_agg(first_signal.value ->> 'name' order by start.ord, first_signal.place),
    array_agg(first_signal.value -> 'payload' order by start.ord, first_signal.place),
    array_agg(first_signal.value ->> 'dedup_key' order by start.ord, first_signal.place)
  into targets, names, payloads, dedup_keys
  from unnest(ids, signals) with ordinality as start (id, signals, ord)
  cross join lateral jsonb_array_elements(start.signals) with ordinality as first_signal (value, place)
  where start.id = any (new_ids);
  if targets is null then
    return;
  end if;

  select delivery.target, delivery.verdict into refusal
  from @schema.signal(
    targets, array_fill(null::bytea, array[cardinality(targets)]), names, payloads, dedup_keys
  ) as delivery
  where delivery.verdict not in ('delivered', 'duplicate') limit 1;
  if found then
    raise exception 'the first signals of instance % do not fit into its inbox (%)', refusal.target, refusal.verdict
      using errcode = '54000';
  end if;
end
$$;
