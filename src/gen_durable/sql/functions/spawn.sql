-- spawn: insert the children of parents that this transaction has locked and is about to park, and the instances that
-- other outcomes start without waiting for them.
--
-- Parameters: the arrays of flush with the fence, the kind, and extras: `children`, an array of objects, or `spawn`,
-- the same. A child with an id (begin_fanout.sql) keeps it.
-- Returns the queues in which rows became runnable.
-- The fence is checked here as in flush, and a row with a pending cancel starts no instances; the lock guarantees that
-- both checks agree. A child whose unique key is taken is neither inserted nor waited for. Rows are inserted in the
-- order of their keys (insert.sql).
-- Index: instances_unique, primary key. Locks: none beyond those of flush and of the keys.
-- Guarded by tests/interleavings/test_unique.py and test_cancel.py.
create or replace function @schema.spawn(ids bigint[], claims int[], seqs int[], kinds text[], extras jsonb[])
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'  -- as flush
set enable_seqscan = off
as $$
declare
  woken text[];
begin
  with source as (
    select o.id as starter, case o.kind when 'children' then o.id end as parent_id,
           case o.kind when 'children' then p.round + 1 end as round, c.*
    from unnest(ids, spawn.claims, seqs, kinds, extras) as o (id, claim, seq, kind, extra)
    join @schema.instances p on p.id = o.id and p.claims = o.claim and p.seq = o.seq
      and (p.cancel_reason is null or o.kind = 'done')  -- as flush: an end is taken also from who is to be cancelled
    cross join lateral rows from (
      jsonb_to_recordset(o.extra -> case o.kind when 'children' then 'children' else 'spawn' end) as (
        fsm text, version int, step text, state jsonb, queue text, priority smallint, partition_key text, delay float8,
        schedule_at timestamptz, unique_key text, unique_scope text, limits jsonb, group_key text, id bigint,
        metadata jsonb
      )
    ) with ordinality as c (
      fsm, version, step, state, queue, priority, partition_key, delay, schedule_at, unique_key, unique_scope, limits,
      group_key, id, metadata, n
    )
    where o.kind = 'children' or o.extra ? 'spawn'
  ),
  limited as materialized (
    select w.wants, k.slot_keys[1] as slot_key, k.rate_keys[1] as rate_key, k.weights[1] as weight
    from (select distinct s.limits as wants from source s where s.limits is not null) as w
    cross join lateral @schema.limit_keys(array[w.wants]) as k
  ),
  -- Ids in the order the parent listed them, whatever order the keys ask for.
  numbered as materialized (
    select s.*, coalesce(s.id, nextval('@schema.instances_id_seq'::regclass)) as child_id
    from (select * from source order by starter, n) as s
  ),
  made as (
    insert into @schema.instances
      (id, fsm, fsm_version, step, state, queue, priority, partition_key, eligible_at, unique_key, unique_scope,
       slot_key, rate_key, weight, group_key, parent_id, parent_round, metadata)
    overriding system value
    select s.child_id, s.fsm, s.version, s.step, coalesce(s.state, 'null'), s.queue, s.priority, s.partition_key,
           coalesce(s.schedule_at, case when s.delay > 0 then statement_timestamp() else now() end + make_interval(secs => s.delay)),
           decode(s.unique_key, 'hex'), coalesce(s.unique_scope, '{}')::@schema.durable_status[],
           l.slot_key, l.rate_key, l.weight, s.group_key, s.parent_id, s.round, s.metadata
    from numbered s
    left join limited l on l.wants = s.limits
    order by decode(s.unique_key, 'hex'), s.child_id
    on conflict (unique_guard) where unique_guard is not null do nothing
    returning queue
  )
  select array_agg(distinct made.queue) into woken from made;
  return woken;
end
$$;
