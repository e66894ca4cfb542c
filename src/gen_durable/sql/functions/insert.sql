-- insert: create instances.
--
-- Parameters: one array per column; an array whose values are all null may be shorter. delays: seconds from now, null
-- for none. schedule_ats: a time takes precedence over the delay. unique_scopes: each the text of an array of statuses.
-- priorities: null means 0. limits: as keys_of_limits.sql takes them. groups: 'KIND/GROUP'. metadatas: objects or
-- null. keeps: seconds to keep the row after its end, Infinity for good, null for the retention.
-- signals: the first signals of each row, as send_first_signals.sql takes them; a row that is not inserted gets none.
-- allocated_ids: the ids of the rows, from allocate_ids, for a caller that must know them first; any other id raises
-- GD008 (use_up_allocated_ids.sql). Without them an id that exists, because the sequence was set back, is drawn again
-- (draw_unused_ids.sql).
-- notify: wake the workers with the commit, one message per queue; the clients pass false and send their own.
-- blocks_busy: rows whose gate other rows hold are blocked too (gates_busy_for_new_rows.sql). The caller must call
-- unblock_new_rows.sql after its commit, or such a row may stay blocked until unblock_missed_rows finds it.
-- on_conflict: 'raise' (the whole call fails with GD001), 'skip' (the id is null) or 'existing' (the id of the holder).
-- Returns one row per input row, in input order; blocked_on is the gate that a new row waits for
-- (gates_blocking_new_rows.sql). Raises 42501 for what the grants of the login do not allow (require_granted.sql), GD007
-- above its quotas (take_login_quota.sql).
-- Index: instances_unique.
-- Locks: the quotas of the login, if it has any (take_login_quota.sql). Then rows are inserted in the order of their keys, so two calls with the same keys wait for each other in one
-- direction only (tests/interleavings: insert_insert).
create or replace function @schema.insert(
  fsms text[],
  versions int[],
  steps text[],
  states jsonb[],
  queues text[],
  priorities smallint[],
  partition_keys text[],
  delays float8[],
  schedule_ats timestamptz[],
  unique_keys bytea[],
  unique_scopes text[],
  on_conflict text default 'raise',
  limits jsonb[] default '{}',
  groups text[] default '{}',
  metadatas jsonb[] default '{}',
  keeps float8[] default '{}',
  signals jsonb[] default '{}',
  allocated_ids bigint[] default '{}',
  notify boolean default true,
  blocks_busy boolean default false
)
returns table (ord int, id bigint, inserted boolean, blocked_on text)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  total constant int := cardinality(fsms);
  call_size constant int := greatest(
    total, cardinality(versions), cardinality(steps), cardinality(states), cardinality(queues), cardinality(priorities),
    cardinality(partition_keys), cardinality(delays), cardinality(schedule_ats), cardinality(unique_keys),
    cardinality(unique_scopes), cardinality(limits), cardinality(groups), cardinality(metadatas), cardinality(keeps),
    cardinality(signals), cardinality(allocated_ids)
  );
  ids bigint[];            -- the id of each row, if it is inserted
  is_set_back boolean;     -- an id is as high as those that were drawn: the sequence was set back
  holders bigint[];        -- the id of the holder of its key, its own if it was inserted
  blocked text[];          -- the gate that a row waits for
  inserted_ids bigint[] := '{}';
  new_ids bigint[];
  new_queues text[];
  slot_keys text[];
  rate_keys text[];
  weights int[];
  -- Only with roles the session user and the user of this function differ. As session_login.sql, for a third of its price.
  starter constant oid := case when session_user <> current_user then to_regrole(quote_ident(session_user))::oid end;
begin
  if on_conflict is null or on_conflict not in ('raise', 'skip', 'existing') then
    raise exception 'on_conflict must be raise, skip or existing, not %', on_conflict using errcode = '22023';
  end if;

  if call_size > 10000 then
    perform @schema.require_max_elements(call_size);
  end if;
  perform @schema.require_valid_starts(
    fsms, versions, steps, states, queues, partition_keys, delays, schedule_ats, unique_keys, groups, metadatas, keeps
  );
  if starter is not null then  -- alone, because a condition with a query costs as much as a query
    if exists (select from @schema.restricted_logins one where one.login = starter) then
      perform @schema.require_granted(starter, fsms, queues, priorities, partition_keys);
      perform @schema.take_login_quota(starter, total);
    end if;
  end if;

  -- Ids in input order, so that rows of equal priority run in the order of the input.
  if cardinality(allocated_ids) = 0 then
    select array_agg(drawn.id), exists (select from @schema.instances i where i.id >= min(drawn.id)) into ids, is_set_back
    from (select nextval('@schema.instances_id_seq'::regclass) as id from generate_series(1, total)) as drawn;
    if is_set_back then
      ids := @schema.draw_unused_ids(total);
    end if;
  else
    if cardinality(allocated_ids) <> total then
      raise exception 'allocated_ids must hold an id of allocate_ids() for each row' using errcode = '22023';
    end if;
    perform @schema.use_up_allocated_ids(allocated_ids);
    ids := allocated_ids;
  end if;

  if cardinality(limits) > 0 then
    select keys.slot_keys, keys.rate_keys, keys.weights into slot_keys, rate_keys, weights
    from @schema.keys_of_limits(limits) as keys;
  end if;

  -- Of the rows of one gate only the first can run at once, so the others stay out of the pick index. With unique keys
  -- it is unknown which rows will be inserted: then none is blocked here, and pick blocks them.
  if cardinality(unique_keys) = 0 and (cardinality(partition_keys) > 0 or cardinality(limits) > 0) then
    blocked := @schema.gates_blocking_new_rows(
      fsms, versions, steps, queues, priorities, partition_keys, slot_keys, rate_keys, delays, schedule_ats
    );
    if blocks_busy then
      blocked := @schema.gates_busy_for_new_rows(
        blocked, queues, partition_keys, slot_keys, rate_keys, delays, schedule_ats
      );
    end if;
  end if;

  for try in 1..20 loop
    with added as (
      insert into @schema.instances
        (id, fsm, fsm_version, step, state, queue, priority, partition_key, blocked_on, eligible_at, unique_key,
         unique_scope, slot_key, rate_key, weight, group_key, metadata, keep_seconds, inserted_by)
      overriding system value
      select given.id, given.fsm, given.version, given.step, given.state, given.queue,
             coalesce(given.priority, 0::smallint), given.partition_key,
             given.blocked_on,
             coalesce(given.schedule_at, case
               when given.delay > 0 then statement_timestamp() + make_interval(secs => given.delay) else now()
             end),
             given.unique_key, coalesce(given.unique_scope, '{}')::@schema.durable_status[], given.slot_key,
             given.rate_key, given.weight,
             given.group_key, given.metadata, given.keep_seconds, starter
      -- In the list of columns, not in FROM: there each array would be written to a tuple store first.
      from (
        select unnest(ids) as id, unnest(fsms) as fsm, unnest(versions) as version, unnest(steps) as step,
          unnest(states) as state, unnest(queues) as queue, unnest(priorities) as priority,
          unnest(partition_keys) as partition_key, unnest(delays) as delay, unnest(schedule_ats) as schedule_at,
          unnest(unique_keys) as unique_key, unnest(unique_scopes) as unique_scope, unnest(holders) as holder,
          unnest(blocked) as blocked_on, unnest(slot_keys) as slot_key, unnest(rate_keys) as rate_key,
          unnest(weights) as weight, unnest(groups) as group_key, unnest(metadatas) as metadata,
          unnest(keeps) as keep_seconds, generate_series(1, total) as ord
      ) as given
      where given.holder is null
      order by given.unique_key, given.ord
      on conflict (unique_guard) where unique_guard is not null do nothing
      returning instances.id, instances.queue
    )
    select array_agg(added.id), array_agg(distinct added.queue) filter (where notify) into new_ids, new_queues from added;
    inserted_ids := inserted_ids || new_ids;
    if cardinality(signals) > 0 then
      perform @schema.send_first_signals(ids, signals, new_ids);
    end if;
    if new_queues is not null then
      perform @schema.notify_workers('queue', new_queues);
    end if;

    if cardinality(inserted_ids) = total then
      return query
        select given.ord::int, given.id, true, given.gate
        from unnest(ids, blocked) with ordinality as given (id, gate, ord) order by given.ord;
      return;
    end if;

    -- The holders of the other keys, by a fresh snapshot.
    select array_agg(coalesce(new_row.id, holder.id) order by given.ord) into holders
    from unnest(ids, unique_keys) with ordinality as given (id, unique_key, ord)
    left join unnest(inserted_ids) as new_row (id) on new_row.id = given.id
    left join lateral (
      select i.id from @schema.instances i where new_row.id is null and i.unique_guard = given.unique_key
    ) as holder on true;

    if on_conflict = 'raise' then
      declare
        conflict record;
      begin
        select given.unique_key, given.holder into conflict
        from unnest(ids, unique_keys, holders) as given (id, unique_key, holder)
        where given.holder <> given.id limit 1;
        if found then
          raise exception 'the unique key is taken by instance %', conflict.holder
            using errcode = 'GD001', detail = encode(conflict.unique_key, 'hex'),
              hint = case when conflict.holder = any (ids) then '' else conflict.holder::text end;  -- '': twice in this call
        end if;
      end;
    end if;

    if on_conflict = 'skip' or array_position(holders, null) is null then
      return query
        select given.ord::int, case when on_conflict = 'existing' or given.id = given.holder then given.holder end,
               coalesce(given.id = given.holder, false), null::text  -- null: the holder ended in between
        from unnest(ids, holders) with ordinality as given (id, holder, ord)
        order by given.ord;
      return;
    end if;
    -- A holder ended or was deleted between the two statements, so its key is free: try the rest again.
  end loop;
  raise exception 'the holders of unique keys kept changing' using errcode = '40001';
end
$$;

comment on function @schema.insert(text[], int[], text[], jsonb[], text[], smallint[], text[], float8[], timestamptz[], bytea[], text[], text, jsonb[], text[], jsonb[], float8[], jsonb[], bigint[], boolean, boolean) is
  'Inserts instances, one per array element. Returns the id of each, and whether it is new. on_conflict says what'
  ' happens if a unique key is taken: raise, skip or existing. Your commit wakes the workers; with notify => false they'
  ' find the instances when they poll, and your commit waits for no other.';

-- One instance, from psql or any other client: `select gen_durable.insert('Checkout', 'start', '{"id": 42}')`.
--
-- Parameters: those of the array overload, each with a default, so that a call names only what it needs. The checks are
-- those of the array overload and of the Python client (validation.py), and raise 22023. unique_scope: 'live' or 'forever'. keep: how long
-- the row is kept after its end; for good if its key is forever. delay, or schedule_at.
-- limits: an array of names, or of [name, partition or null, weight]. Returns the id; null if on_conflict is 'skip' and
-- the key is taken.
-- A call with typed arrays means the other overload: its states, jsonb[], do not fit unique_key.
-- Guarded by tests/store/test_insert_one.py.
create or replace function @schema.insert(
  machine text,
  step text,
  state jsonb default 'null',
  unique_key text default null,
  unique_scope text default 'live',
  keep interval default null,
  queue text default 'default',
  priority int default 0,
  partition_key text default null,
  delay interval default null,
  schedule_at timestamptz default null,
  version int default 1,
  metadata jsonb default null,
  limits jsonb default null,
  group_key text default null,
  on_conflict text default 'raise',
  notify boolean default true
)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
  problem text;
  seconds constant float8 := extract(epoch from delay);
  keep_seconds constant float8 := case
    when keep is not null then extract(epoch from keep) when unique_scope = 'forever' then 'Infinity'
  end;
  new_id bigint;
begin
  problem := case
    when unique_scope is null or unique_scope not in ('live', 'forever')
      then format('unique_scope must be live or forever, got %s', coalesce(quote_literal(left(unique_scope, 80)), 'null'))
    when unique_scope = 'forever' and unique_key is null then 'unique_scope forever needs a unique_key'
    when (priority between -32768 and 32767) is not true
      then format('priority must be a number from -32768 to 32767 (lower runs earlier), got %s', priority)
    when delay is not null and schedule_at is not null then 'give either delay or schedule_at, not both'
    when octet_length(state::text) > 1000000
      then format('the state is %s bytes of JSON, at most 1000000 are allowed', octet_length(state::text))
    when octet_length(metadata::text) > 8000
      then format('metadata is %s bytes of JSON, at most 8000 are allowed', octet_length(metadata::text))
    when jsonb_typeof(limits) <> 'array' or exists (
      select from jsonb_array_elements(limits) as named (item)
      where not coalesce(case jsonb_typeof(named.item)
        when 'string' then true
        when 'array' then jsonb_typeof(named.item -> 0) = 'string' and jsonb_array_length(named.item) <= 3
          and coalesce(jsonb_typeof(named.item -> 1), 'null') in ('string', 'null')
          and coalesce(named.item ->> 2, '1') ~ '^[1-9][0-9]{0,8}$'
      end, false)
    ) then 'limits must be an array of names, or of [name, partition, weight], such as ["stripe"]'
  end;
  if problem is not null then
    raise exception using errcode = '22023', message = problem;
  end if;

  select added.id into new_id from @schema.insert(
    fsms => array[machine], versions => array[version], steps => array[step],
    states => array[coalesce(state, 'null')], queues => array[queue], priorities => array[priority::smallint],
    partition_keys => array_remove(array[partition_key], null), delays => array_remove(array[seconds], null),
    schedule_ats => array_remove(array[schedule_at], null),
    unique_keys => array_remove(array[convert_to(unique_key, 'UTF8')], null),
    unique_scopes => case
      when unique_key is null then '{}'
      when unique_scope = 'forever' then array[enum_range(null::@schema.durable_status)::text]
      else array['{runnable,executing,awaiting_signal,awaiting_children}']
    end,
    on_conflict => on_conflict,
    limits => case when limits is null then '{}' else array[(
      select coalesce(jsonb_agg(
        case jsonb_typeof(named.item)
          when 'string' then jsonb_build_array(named.item, null, 1)
          else jsonb_build_array(named.item -> 0, named.item -> 1, coalesce((named.item ->> 2)::int, 1))
        end
      ), '[]') from jsonb_array_elements(limits) as named (item)
    )] end,
    groups => array_remove(array[group_key], null), metadatas => array_remove(array[metadata], null),
    keeps => array_remove(array[keep_seconds], null), notify => notify
  ) as added;
  return new_id;
end
$$;

comment on function @schema.insert(text, text, jsonb, text, text, interval, text, int, text, interval, timestamptz, int, jsonb, jsonb, text, text, boolean) is
  'Inserts one instance and returns its id, in your transaction: select gen_durable.insert(''Checkout'', ''start'', '
  '''{"id": 42}'', unique_key => ''order:42''). Name the options you need; unique_scope is live or forever,'
  ' on_conflict is raise, skip (returns null) or existing (returns the holder). Your commit wakes the workers, unless'
  ' you pass notify => false.';
