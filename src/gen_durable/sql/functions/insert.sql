-- insert: create instances.
--
-- Parameters: one array per column; an array whose values are all null may be shorter. delays: seconds from now, null
-- for none. schedule_ats: a time takes precedence over the delay. unique_scopes: each the text of an array of statuses.
-- priorities: null means 0. limits: as limit_keys.sql takes them. groups: 'KIND/GROUP'. metadatas: objects or null.
-- drawn: the ids of the rows, from allocate_ids, for a caller that must know them first; any other id is rejected.
-- on_conflict: 'raise' (the whole call fails with GD001), 'skip' (the id is null) or 'existing' (the id of the holder).
-- Returns one row per input row, in input order.
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
  drawn bigint[] default '{}'
)
returns table (ord int, id bigint, inserted boolean)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
as $$
#variable_conflict use_column
declare
  total constant int := cardinality(fsms);
  ids bigint[];            -- the id each row has, if it goes in
  holders bigint[];        -- the id each row ends up with
  blocked text[];          -- the gate that a row waits for
  made bigint[] := '{}';
  new bigint[];
  slot_keys text[];
  rate_keys text[];
  weights int[];
  -- Asked only where it can matter: with roles, who calls is not who runs this.
  starter constant text := case when session_user <> current_user and not @schema.may_read('state') then session_user end;
begin
  if on_conflict is null or on_conflict not in ('raise', 'skip', 'existing') then
    raise exception 'on_conflict must be raise, skip or existing, not %', on_conflict using errcode = '22023';
  end if;

  -- Ids in input order, so that equal priorities run in the order in which they were handed in.
  if cardinality(drawn) = 0 then
    select array_agg(nextval('@schema.instances_id_seq'::regclass)) into ids from generate_series(1, total);
  else
    -- An id that the sequence has not come to yet would be in the way of somebody else's row later on.
    if cardinality(drawn) <> total
      or exists (select from unnest(drawn) as d (id) where d.id is null or d.id < 1 or d.id > (select last_value from @schema.instances_id_seq))
    then
      raise exception 'drawn must hold an id of allocate_ids() for each row' using errcode = '22023';
    end if;
    ids := drawn;
  end if;

  if cardinality(limits) > 0 then
    select k.slot_keys, k.rate_keys, k.weights into slot_keys, rate_keys, weights from @schema.limit_keys(limits) as k;
  end if;

  -- Of the rows of one gate only the first can run at once, so the others do not come into the pick index. With unique
  -- keys it is not known which of them go in: then all come, and pick sorts them out.
  if cardinality(unique_keys) = 0 and (cardinality(partition_keys) > 0 or cardinality(limits) > 0) then
    blocked := @schema.initial_blocks(
      fsms, versions, steps, queues, priorities, partition_keys, slot_keys, rate_keys, delays, schedule_ats
    );
  end if;

  for try in 1..20 loop
    with added as (
      insert into @schema.instances
        (id, fsm, fsm_version, step, state, queue, priority, partition_key, blocked_on, eligible_at, unique_key,
         unique_scope, slot_key, rate_key, weight, group_key, metadata, inserted_by)
      overriding system value
      select o.id, o.fsm, o.version, o.step, o.state, o.queue, coalesce(o.priority, 0::smallint), o.partition_key,
             o.blocked_on, coalesce(o.schedule_at, case when o.delay > 0 then statement_timestamp() + make_interval(secs => o.delay) else now() end),
             o.unique_key, coalesce(o.unique_scope, '{}')::@schema.durable_status[], o.slot_key, o.rate_key, o.weight,
             o.group_key, o.metadata, starter
      from unnest(ids, fsms, versions, steps, states, queues, priorities, partition_keys, delays, schedule_ats,
                  unique_keys, unique_scopes, holders, blocked, slot_keys, rate_keys, weights, groups, metadatas)
        with ordinality as o (id, fsm, version, step, state, queue, priority, partition_key, delay, schedule_at,
                              unique_key, unique_scope, holder, blocked_on, slot_key, rate_key, weight, group_key, metadata, n)
      where o.holder is null
      order by o.unique_key, o.n
      on conflict (unique_guard) where unique_guard is not null do nothing
      returning instances.id
    )
    select array_agg(added.id) into new from added;
    made := made || new;

    if cardinality(made) = total then
      return query select o.n::int, o.id, true from unnest(ids) with ordinality as o (id, n) order by o.n;
      return;
    end if;

    -- Who holds the keys of the rest, by a fresh snapshot.
    select array_agg(coalesce(m.id, h.id) order by o.n) into holders
    from unnest(ids, unique_keys) with ordinality as o (id, unique_key, n)
    left join unnest(made) as m (id) on m.id = o.id
    left join lateral (
      select i.id from @schema.instances i where m.id is null and i.unique_guard = o.unique_key
    ) as h on true;

    if on_conflict = 'raise' then
      declare
        taken record;
      begin
        select o.unique_key, o.holder into taken
        from unnest(ids, unique_keys, holders) as o (id, unique_key, holder)
        where o.holder <> o.id limit 1;
        if found then
          raise exception 'the unique key is taken by instance %', taken.holder
            using errcode = 'GD001', detail = encode(taken.unique_key, 'hex'),
              hint = case when taken.holder = any (ids) then '' else taken.holder::text end;  -- '': twice in this call
        end if;
      end;
    end if;

    if on_conflict = 'skip' or array_position(holders, null) is null then
      return query
        select o.n::int, case when on_conflict = 'existing' or o.id = o.holder then o.holder end,
               coalesce(o.id = o.holder, false)  -- null: the holder ended in between
        from unnest(ids, holders) with ordinality as o (id, holder, n)
        order by o.n;
      return;
    end if;
    -- A holder ended between the two statements, so its key is free: try the rest again.
  end loop;
  raise exception 'the holders of unique keys kept changing' using errcode = '40001';
end
$$;
