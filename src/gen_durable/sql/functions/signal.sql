-- signal: deliver signals.
--
-- Parameters: one array per column, all of one length. A target is given by id or, where that is null, by unique key.
-- skip_locked: do not wait for a target that another transaction has locked. Its signals are not delivered, with the
-- verdict 'locked': for signals of several callers, none of which may hold up the others.
-- Returns one row per input row, in input order: the target's id; a verdict: 'delivered', 'duplicate', 'no_target',
-- 'full' or 'locked'; and the queue to wake. That is the queue of a row that became
-- runnable, and of a row that was due already: the lock taken here may have hidden it from a picker that was just woken
-- for it (tests/flows/test_signals.py).
-- An inbox is full for a name with 10,000 unconsumed signals of it, or 64 MB of their payloads with this one. For a name
-- that the row does not await now it is also full with 20,000 signals, or 128 MB, of all names: the total is bounded, and
-- no other name shuts out the awaited ones (tests/store/test_inbox_bounds.py). An inbox below 42 signals is not counted.
-- Index: primary key, instances_unique, signals_dedup, signals_inbox.
-- Locks: the targets in id order, unconditionally: whether a row is parked is decided under its lock. A lock only on
-- rows that look parked would miss a row that is about to park (tests/interleavings: park_deliver).
-- Long because the locks are taken in two ways, and a function for them would cost a fifth of a signal.
create or replace function @schema.signal(
  targets bigint[], keys bytea[], names text[], payloads jsonb[], dedup_keys text[], skip_locked boolean default false
)
returns table (ord int, target bigint, verdict text, woken_queue text)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  resolved bigint[];
  locked_places tid[];
  locked_ids bigint[];
  skipped bigint[];        -- targets that another transaction has locked
  large_inboxes bigint[];  -- targets whose inbox must be counted
  sizes bigint[];          -- of the payloads as text,
  totals bigint[];         -- and with those before them of the same name for the same target
  refusals boolean[];      -- whether a large inbox takes no more of the name; null if no inbox is large
begin
  perform @schema.require_max_elements(greatest(
    cardinality(targets), cardinality(keys), cardinality(names), cardinality(payloads), cardinality(dedup_keys)
  ), 100000);  -- as many as the first signals of a batch
  if cardinality(names) < greatest(cardinality(targets), cardinality(keys)) is not false then
    raise exception 'each signal needs a name' using errcode = '22023';
  end if;
  perform @schema.require_valid_signals(names, payloads, dedup_keys);
  select array_agg(coalesce(given.id, holder.id) order by given.ord) into resolved
  from unnest(targets, keys) with ordinality as given (id, key, ord)
  left join lateral (
    select i.id from @schema.instances i where given.id is null and i.unique_guard = given.key
  ) as holder on true;
  if session_user <> current_user and not @schema.may_change_instances_of_others() then
    resolved := @schema.ids_of_own_instances(resolved);
  end if;

  -- Most inboxes are small: 42 signals of the largest size fit.
  if skip_locked then
    select
      array_agg(free.ctid),
      array_agg(free.id),
      array_agg(free.id) filter (where free.has_signals and exists (
        select from @schema.signals s where s.target_id = free.id and not s.consumed order by s.id limit 1 offset 41
      ))
    into locked_places, locked_ids, large_inboxes
    from (
      select free.ctid, free.id, free.has_signals
      from @schema.instances free where free.id = any (resolved) order by free.id for no key update skip locked
    ) as free;
    if coalesce(cardinality(locked_ids), 0) < cardinality(resolved) then
      skipped := array(
        select i.id from @schema.instances i where i.id = any (resolved) and i.id <> all (coalesce(locked_ids, '{}'))
      );
    end if;
  else
    select
      array_agg(locked_row.ctid),
      array_agg(locked_row.id) filter (where locked_row.has_signals and exists (
        select from @schema.signals s where s.target_id = locked_row.id and not s.consumed order by s.id offset 41
      ))
    into locked_places, large_inboxes
    from (
      select i.ctid, i.id, i.has_signals
      from @schema.instances i where i.id = any (resolved) order by i.id for no key update
    ) as locked_row;
  end if;

  if cardinality(targets) = 1 then
    sizes := array[coalesce(octet_length(payloads[1]::text), 0)];
    totals := sizes;
  else
    select array_agg(item.size order by item.ord), array_agg(item.total order by item.ord) into sizes, totals
    from (
      select given.ord, given.size, sum(given.size) over (partition by given.id, given.name order by given.ord) as total
      from (
        select delivery.id, delivery.name, delivery.ord, coalesce(octet_length(delivery.payload::text), 0) as size
        from unnest(resolved, names, payloads) with ordinality as delivery (id, name, payload, ord)
      ) as given
    ) as item;
  end if;

  if large_inboxes is not null then
    -- By the index alone: below the bounds of one name in total, no name can have reached them.
    large_inboxes := array(
      select large.id from unnest(large_inboxes) as large (id)
      cross join lateral (
        select count(*) as count, sum(s.size) as bytes from @schema.signals s
        where s.target_id = large.id and not s.consumed
      ) as inbox
      where inbox.count >= 10000
        or inbox.bytes + (select max(call.total) from unnest(totals) as call (total)) > 64000000
    );
  end if;
  if cardinality(large_inboxes) > 0 then
    with unread as materialized (
      select s.target_id, s.name, count(*) as count, sum(s.size) as bytes
      from @schema.signals s
      where s.target_id = any (large_inboxes) and not s.consumed group by s.target_id, s.name
    ),
    inbox as (
      select unread.target_id, sum(unread.count) as count, sum(unread.bytes) as bytes from unread group by unread.target_id
    )
    select array_agg(
      coalesce(same_name.count >= 10000 or same_name.bytes + given.total > 64000000, false)
        or coalesce(
          given.name <> all (coalesce(i.awaits, '{}')) and (inbox.count >= 20000 or inbox.bytes + given.total > 128000000),
          false
        )
      order by given.ord
    ) into refusals
    from unnest(resolved, names, totals) with ordinality as given (id, name, total, ord)
    left join @schema.instances i on i.id = given.id
    left join inbox on inbox.target_id = given.id
    left join unread as same_name on same_name.target_id = given.id and same_name.name = given.name;
  end if;

  -- From here on rows are found by their ctid, which cannot change under the lock: one index lookup per row.
  return query
    with live_rows as materialized (
      select i.ctid as place, i.id, i.queue, i.status, i.awaits, i.has_signals, i.unique_guard,
             i.due_at <= now() as is_due
      from @schema.instances i
      where i.ctid = any (locked_places) and i.finished_at is null
    ),
    given as (
      select item.*, live_row.queue, live_row.id as live_id, live_row.is_due,
             coalesce(item.is_refused, false) or item.total > 64000000 as is_full
      from unnest(resolved, keys, names, payloads, dedup_keys, sizes, totals, refusals) with ordinality
        as item (id, key, name, payload, dedup_key, size, total, is_refused, ord)
      left join live_rows as live_row
        on live_row.id = item.id and (item.key is null or live_row.unique_guard = item.key)
    ),
    delivered as (
      insert into @schema.signals as signal (target_id, name, payload, dedup_key, size)
      select given.id, given.name, given.payload, given.dedup_key, given.size from given
      where given.live_id is not null and not given.is_full order by given.ord
      on conflict (target_id, dedup_key) where dedup_key is not null and rejection is null do nothing
      returning signal.target_id, signal.name, signal.dedup_key
    ),
    touched as (
      update @schema.instances i set
        has_signals = true,
        status = case when target_row.wakes then 'runnable' else i.status end,
        eligible_at = case when target_row.wakes then now() else i.eligible_at end,
        unique_scope = case
          when target_row.wakes then @schema.unique_scope_for_status(i.unique_scope, 'runnable') else i.unique_scope
        end,
        updated_at = case when target_row.wakes then now() else i.updated_at end
      from (
        select live_row.place, live_row.has_signals,
               live_row.status = 'awaiting_signal' and live_row.awaits && inbox.names as wakes
        from (
          select delivered.target_id, array_agg(delivered.name) as names from delivered group by delivered.target_id
        ) as inbox
        join live_rows as live_row on live_row.id = inbox.target_id
      ) as target_row
      where i.ctid = target_row.place and (target_row.wakes or not target_row.has_signals)
      returning i.id, target_row.wakes
    )
    select
      given.ord::int,
      given.live_id,
      case
        when given.id = any (skipped) then 'locked'
        when given.live_id is null then 'no_target'
        when given.is_full and not exists (
          select from @schema.signals s
          where s.target_id = given.id and s.dedup_key = given.dedup_key and s.rejection is null
        ) then 'full'
        when given.dedup_key is null then 'delivered'
        when exists (select from delivered where delivered.target_id = given.id and delivered.dedup_key = given.dedup_key)
          and given.ord = min(given.ord) over (partition by given.id, given.dedup_key) then 'delivered'
        else 'duplicate'
      end,
      case when given.is_due or given.id in (select touched.id from touched where touched.wakes) then given.queue end
    from given
    order by given.ord;
end
$$;

-- One signal, from psql or any other client: `select gen_durable.signal(42, 'payment', '{"amount": 100}')`.
-- notify: wake the workers with the commit (notify_workers.sql).
create or replace function @schema.signal(
  target bigint, name text, payload jsonb default null, dedup_key text default null, notify boolean default true
)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  delivery record;
begin
  select * into delivery
  from @schema.signal(array[target], array[null::bytea], array[name], array[payload], array[dedup_key]);
  if notify then
    perform @schema.notify_workers('queue', array[delivery.woken_queue]);
  end if;
  return delivery.verdict;
end
$$;

create or replace function @schema.signal(
  key text, name text, payload jsonb default null, dedup_key text default null, notify boolean default true
)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  delivery record;
begin
  select * into delivery
  from @schema.signal(array[null::bigint], array[convert_to(key, 'UTF8')], array[name], array[payload], array[dedup_key]);
  if notify then
    perform @schema.notify_workers('queue', array[delivery.woken_queue]);
  end if;
  return delivery.verdict;
end
$$;

comment on function @schema.signal(bigint[], bytea[], text[], jsonb[], text[], boolean) is
  'Delivers signals, one per array element, to instances given by id or by unique key. Returns a verdict per '
  'signal: delivered, duplicate, no_target or full; with skip_locked also locked, for an instance that another '
  'transaction has locked.';

comment on function @schema.signal(bigint, text, jsonb, text, boolean) is
  'Delivers one signal to an instance by id, in your transaction: select gen_durable.signal(42, ''payment'', '
  '''{"amount": 100}''). Signals with the same dedup_key are delivered once. Returns delivered, duplicate, '
  'no_target or full. Your commit wakes the workers; with notify => false they find the signal when they poll, and '
  'your commit waits for no other.';

comment on function @schema.signal(text, text, jsonb, text, boolean) is
  'Delivers one signal to the instance that holds a unique key: select gen_durable.signal(''order-42'', '
  '''payment'', ''{"amount": 100}''). Returns delivered, duplicate, no_target or full. notify as for the other.';
