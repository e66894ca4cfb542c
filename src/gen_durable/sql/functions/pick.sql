-- pick: claim due rows for a worker.
--
-- In: who asks; per queue how many rows; the names the worker can run ('machine/version/step'); the lease in seconds;
-- floors, which a former pick has told; per fair queue the kind of its groups, and the group that had
-- the last turn (null: none had).
-- Out: one row per claim, most urgent first. A row without an id tells of a queue whose demand was not met: in how many
-- seconds its next row falls due (null: none is waiting), and how many due rows were passed over for a busy gate; or it
-- tells of the floors of a queue; or of the group that had the last turn; or, without a queue, of queues in which other
-- rows became due (in awaits), and how many rows were blocked, by gate (in heads). limited: the slot that a row takes, or
-- '' for one that has a rate limit only.
-- Index: instances_pick, one (queue, priority) at a time: stepping from priority to priority means that rows due
-- in the future are never read, however urgent.
-- Floors: what was picked before leaves dead entries at the head of the index. They go with the next look at them,
-- unless a long transaction holds them all back: then every pick walks over more of them. One that has walked for more
-- than 5 ms tells where the live rows begin: [priority, due_at, id] for each priority that it came to. With these floors
-- the next picks begin there, and go on with the priorities after them. What comes in below a floor is found when the
-- asker asks without floors again (engine/scan_floors.py).
-- Locks: FOR NO KEY UPDATE SKIP LOCKED, so that pickers never wait for each other, nor for a delivery in progress.
--
-- Partition keys and limits: admit_partitions.sql and admit_limits.sql say which rows may run and block the others, so that a row is
-- passed over once. Fair queues: pick_fair.sql finds the rows.
create or replace function @schema.pick(
  worker text, queues text[], demands int[], known text[], lease float8, floors jsonb default null,
  turns jsonb default null
)
returns table (
  id bigint, fsm text, fsm_version int, step text, state jsonb, attempt int, claims int, seq int, queue text,
  priority smallint, partition_key text, unique_key bytea, parent_id bigint, awaits text[], limited text,
  inbox jsonb, children jsonb, next_due float8, contended int, heads jsonb, turn text,
  visit int, journal jsonb
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  q text;
  demand int;
  prio int;
  head timestamptz;  -- the first row of the priority: when it falls due, and its id. Only the statement that finds it
  head_id bigint;    -- walks over dead entries
  low jsonb;         -- the floor of the priority
  level int;
  began timestamptz;
  walked interval;
  found_heads jsonb;
  hits tid[];
  keyed boolean;
  denied int;
  more_denied int;
  busy int;
  tids tid[] := '{}';
  keys text[];           -- what admit has let run: their keys,
  ids bigint[];          -- and their ids
  taken_keys text[] := '{}';
  taken_ids bigint[] := '{}';
  slots text[];          -- what admit_limits has let run: their slots
  taken_slots text[] := '{}';
  refused jsonb;
  tally jsonb := '{}';   -- how many were blocked, by gate
  fair boolean;
  last_turn text;
  unfinished boolean;
  next_at timestamptz;
  due timestamptz;
  passed int;
  enough constant int := 2000;  -- so many rows are blocked at most before the claims that there are are handed out
  rings text[];  -- not called as the column of admit is: here a column comes before a variable
begin
  for i in 1..cardinality(queues) loop
    q := queues[i];
    demand := demands[i];
    next_at := null;
    passed := 0;
    fair := coalesce(turns ? q, false);
    last_turn := turns -> q ->> 1;
    prio := -32769;  -- below the lowest
    level := -1;
    walked := interval '0';
    found_heads := '[]';
    while demand > 0 loop
      began := clock_timestamp();
      level := level + 1;
      low := floors -> q -> level;
      if low is not null then
        prio := (low ->> 0)::int;
        select i.due_at, i.id into head, head_id from @schema.instances i
        where i.queue = q and i.priority = prio and i.due_at is not null
          and (i.due_at, i.id) >= ((low ->> 1)::timestamptz, (low ->> 2)::bigint)
        order by i.due_at, i.id limit 1;
        if not found then
          found_heads := found_heads || jsonb_build_array(low);
          continue;
        end if;
      else
        select i.priority, i.due_at, i.id into prio, head, head_id from @schema.instances i
        where i.queue = q and i.due_at is not null and i.priority > prio
        order by i.priority, i.due_at, i.id limit 1;
        exit when not found;
      end if;
      walked := walked + (clock_timestamp() - began);
      found_heads := found_heads || jsonb_build_array(
        case
          -- Rows that fall due now come in by transactions that began a little earlier.
          when head < now() - interval '1 second' then jsonb_build_array(prio, head, head_id)
          else jsonb_build_array(prio, now() - interval '1 second', 0)
        end
      );
      if head > now() then
        next_at := least(next_at, head);
        continue;
      end if;

      -- Rows whose gates are busy are blocked, and the search goes on behind them.
      while demand > 0 loop
        if fair then
          select t.hits, t.keyed, t.last, t.more into hits, keyed, last_turn, unfinished
          from @schema.pick_fair(q, prio, known, demand, turns -> q ->> 0, last_turn, tids) as t;
          if unfinished then
            next_at := least(next_at, now() + interval '20 milliseconds');
          end if;
          exit when cardinality(hits) = 0;
        else
          select array_agg(c.ctid), bool_or(c.keyed) into hits, keyed
          from (
            select i.ctid, coalesce(i.partition_key, i.slot_key, i.rate_key) is not null as keyed
            from @schema.instances i
            where i.queue = q and i.priority = prio and i.due_at <= now() and (i.due_at, i.id) >= (head, head_id)
              and i.fsm || '/' || i.fsm_version || '/' || i.step = any (known)
            order by i.due_at, i.id
            limit demand
            for no key update skip locked
          ) as c;
          exit when hits is null;
        end if;
        denied := 0;
        busy := 0;
        if keyed then
          if not fair then
            select i.due_at, i.id + 1 into head, head_id from @schema.instances i
            where i.ctid = hits[cardinality(hits)];
          end if;
          select a.allowed, a.denied, a.contended, rings || a.woken, a.keys, a.ids
          into hits, denied, busy, rings, keys, ids
          from @schema.admit_partitions(hits, taken_keys, taken_ids, case when passed < 10 then 10 else 1 end) as a;
          taken_keys := taken_keys || keys;
          taken_ids := taken_ids || ids;
          if exists (
            select from @schema.instances i
            where i.ctid = any (hits) and coalesce(i.slot_key, i.rate_key) is not null
          ) then
            select r.allowed, r.denied, busy + r.contended, rings || r.woken, r.slots, r.tally
            into hits, more_denied, busy, rings, slots, refused
            from @schema.admit_limits(hits, tids, taken_slots, case when passed < 10 then 10 else 1 end) as r;
            taken_slots := taken_slots || slots;
            denied := denied + more_denied;
            if refused is not null then
              select jsonb_object_agg(t.gate, t.n) into tally
              from (
                select r.gate, sum(r.n::int) as n
                from (select * from jsonb_each_text(tally) union all select * from jsonb_each_text(refused)) as r (gate, n)
                group by r.gate
              ) as t;
            end if;
          end if;
          passed := passed + denied + busy;
          if busy > 0 then
            next_at := least(next_at, now() + interval '10 milliseconds');  -- the gate may be free then
          end if;
        end if;
        tids := tids || hits;
        demand := demand - coalesce(cardinality(hits), 0);
        exit when not keyed or passed > enough or (fair and denied = 0);
      end loop;
      if passed > enough then
        next_at := now();
        exit;
      end if;
      exit when demand <= 0;

      select i.due_at into due from @schema.instances i
      where i.queue = q and i.priority = prio and i.due_at > now() order by i.due_at limit 1;
      next_at := least(next_at, due);
    end loop;

    if fair then
      queue := q;
      turn := last_turn;
      return next;
      turn := null;
    end if;
    if walked > interval '5 milliseconds' then
      queue := q;
      heads := found_heads;
      return next;
      heads := null;
    end if;
    if demand > 0 then
      queue := q;
      next_due := extract(epoch from next_at - clock_timestamp());
      contended := passed;
      return next;
      next_due := null;
      contended := null;
    end if;
  end loop;

  if rings is not null or tally <> '{}' then
    queue := null;
    awaits := rings;
    heads := tally;
    return next;
    awaits := null;
    heads := null;
  end if;
  if cardinality(tids) = 0 then
    return;
  end if;

  return query
    with claimed as (
      update @schema.instances i set
        status = 'executing',
        claims = i.claims + 1,
        locked_by = worker,
        lease_expires_at = now() + make_interval(secs => lease),
        await_deadline = null,
        joined = i.joined or i.status = 'awaiting_children',  -- by its deadline
        children_pending = 0,
        token_at = null,
        seen = null,
        unique_scope = case when 'executing' = any (i.unique_scope) then i.unique_scope else '{}' end,
        updated_at = now()
      where i.ctid = any (tids)
      returning i.*
    ),
    -- A barrier that its deadline has opened. (Others have been dealt with when they opened.)
    rest as (
      insert into @schema.cascades (parent_id, first_round, last_round, origin, reason)
      select i.id, i.round, i.round, i.id, format('instance %s goes on without it', i.id) from claimed i
      where i.cancel_rest and i.joined
    )
    select
      i.id, i.fsm, i.fsm_version, i.step, i.state, i.attempt, i.claims, i.seq, i.queue, i.priority, i.partition_key,
      i.unique_key, i.parent_id, i.awaits,
      coalesce(i.slot_key, case when i.rate_key is not null then '' end),
      case when i.has_signals then @schema.inbox_of(i.id) end,
      case when i.joined then @schema.children_of(i.id, i.round) end,
      null::float8, null::int, null::jsonb, null::text,
      i.visit, case when i.has_journal then @schema.journal_of(i.id, i.visit) end
    from claimed i
    order by i.priority, i.eligible_at, i.id;
end
$$;
