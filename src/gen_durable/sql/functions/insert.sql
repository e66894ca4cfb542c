-- insert: create instances.
--
-- Parameters: one array per column; an array whose values are all null may be shorter. delays: seconds from now, null
-- for none. schedule_ats: a time takes precedence over the delay. unique_scopes: each the text of an array of statuses.
-- priorities: null means 0. limits: as resolve_limit_keys.sql takes them. groups: 'KIND/GROUP'. metadatas: objects or
-- null. keeps: seconds to keep the row after its end, Infinity for good, null for the retention.
-- allocated_ids: the ids of the rows, from allocate_ids, for a caller that must know them first; any other id is
-- rejected.
-- notify: wake the workers with the commit, one message per queue; the clients pass false and send their own.
-- on_conflict: 'raise' (the whole call fails with GD001), 'skip' (the id is null) or 'existing' (the id of the holder).
-- Returns one row per input row, in input order; blocked_on is the gate that a new row waits for (initial_blocks.sql).
-- Index: instances_unique.
-- Locks: rows are inserted in the order of their keys, so two calls with the same keys wait for each other in one
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
  allocated_ids bigint[] default '{}',
  notify boolean default true
)
returns table (ord int, id bigint, inserted boolean, blocked_on text)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  total constant int := cardinality(fsms);
  ids bigint[];            -- the id of each row, if it is inserted
  holders bigint[];        -- the id of the holder of its key, its own if it was inserted
  blocked text[];          -- the gate that a row waits for
  inserted_ids bigint[] := '{}';
  new_ids bigint[];
  new_queues text[];
  slot_keys text[];
  rate_keys text[];
  weights int[];
  -- Only with roles the session user and the user of this function differ.
  starter constant text := case
    when session_user <> current_user and not @schema.may_read_column('state') then session_user
  end;
begin
  if on_conflict is null or on_conflict not in ('raise', 'skip', 'existing') then
    raise exception 'on_conflict must be raise, skip or existing, not %', on_conflict using errcode = '22023';
  end if;

  -- Ids in input order, so that rows of equal priority run in the order of the input.
  if cardinality(allocated_ids) = 0 then
    select array_agg(nextval('@schema.instances_id_seq'::regclass)) into ids from generate_series(1, total);
  else
    -- An id above the sequence would collide with a later row.
    if cardinality(allocated_ids) <> total
      or exists (
        select from unnest(allocated_ids) as allocated_id (value)
        where allocated_id.value is null or allocated_id.value < 1
          or allocated_id.value > (select last_value from @schema.instances_id_seq)
      )
    then
      raise exception 'allocated_ids must hold an id of allocate_ids() for each row' using errcode = '22023';
    end if;
    ids := allocated_ids;
  end if;

  if cardinality(limits) > 0 then
    select keys.slot_keys, keys.rate_keys, keys.weights into slot_keys, rate_keys, weights
    from @schema.resolve_limit_keys(limits) as keys;
  end if;

  -- Of the rows of one gate only the first can run at once, so the others stay out of the pick index. With unique keys
  -- it is unknown which rows will be inserted: then none is blocked here, and pick blocks them.
  if cardinality(unique_keys) = 0 and (cardinality(partition_keys) > 0 or cardinality(limits) > 0) then
    blocked := @schema.initial_blocks(
      fsms, versions, steps, queues, priorities, partition_keys, slot_keys, rate_keys, delays, schedule_ats
    );
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
      from unnest(ids, fsms, versions, steps, states, queues, priorities, partition_keys, delays, schedule_ats,
                  unique_keys, unique_scopes, holders, blocked, slot_keys, rate_keys, weights, groups, metadatas,
                  keeps)
        with ordinality as given (id, fsm, version, step, state, queue, priority, partition_key, delay, schedule_at,
                                  unique_key, unique_scope, holder, blocked_on, slot_key, rate_key, weight, group_key,
                                  metadata, keep_seconds, ord)
      where given.holder is null
      order by given.unique_key, given.ord
      on conflict (unique_guard) where unique_guard is not null do nothing
      returning instances.id, instances.queue
    )
    select array_agg(added.id), array_agg(distinct added.queue) filter (where notify) into new_ids, new_queues from added;
    inserted_ids := inserted_ids || new_ids;
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

comment on function @schema.insert(text[], int[], text[], jsonb[], text[], smallint[], text[], float8[], timestamptz[], bytea[], text[], text, jsonb[], text[], jsonb[], float8[], bigint[], boolean) is
  'Inserts instances, one per array element. Returns the id of each, and whether it is new. on_conflict says what'
  ' happens if a unique key is taken: raise, skip or existing. Your commit wakes the workers; with notify => false they'
  ' find the instances when they poll, and your commit waits for no other.';
