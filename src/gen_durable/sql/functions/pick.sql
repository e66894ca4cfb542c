-- pick: claim due rows for a worker.
--
-- Parameters, the arrays in parallel:
--   worker, lease     goes to locked_by; the length of the lease in seconds
--   queues, demands   the queues to search, and how many rows to claim in each
--   known             the steps that the worker can run (qualified_step_name.sql)
--   scan_positions    {queue: [[priority, due_at, id], ...]}, as an earlier pick has reported them
--   fair              {queue: [kind of its groups, the group served last or null]} for fair queues
--   free              how many rows of each queue start at once; the others are claimed ahead, and must leave limits and
--                     contended partition keys alone (claimable_rows.sql). Null if all start at once
--   crashed           how many rows may be claimed that crashed twice in a row (gate_of_crashed_row.sql); null for any number
--   last_chance       whether, if there is no such row, one may be claimed that the next crash fails
--   with_payloads     false leaves out inbox, children and journal: the worker sets a row aside whose claim cannot be
--                     read (engine/picker.py)
-- Returns one row per claim, the most urgent first. `limited` is the slot that the row takes, '' for a row with a rate
-- limit only; is_woken_by_deadline is true for the claim that a deadline caused, and not for later ones.
-- If there is anything to report, one more row has a null id and only `report`:
--   queues    {queue: {unmet, next_due, contended, needs_slot, scan_positions, last_group}}: `unmet` if fewer rows
--             than demanded were found; then next_due is the number of seconds until the next row is due (null if no row waits),
--             contended the number of due rows that were skipped because their gate is busy, and needs_slot is true if
--             due rows were left because they must not be claimed ahead. scan_positions and last_group are for the next
--             pick.
--   woken_queues  queues in which other rows became due
--   blocked   [{gate, queue, count, granted, id, machine}]: how many rows of a queue were blocked on a gate, how many the
--             rate limit has admitted instead, and the first of the blocked rows. At most about a hundred entries
-- Scan positions: rows that were picked earlier leave dead entries at the head of the index. The next scan removes
-- them, unless a long transaction prevents that; then every pick walks over more of them. A pick that has walked for
-- more than 5 ms reports where the live rows begin, for each priority, and the next picks start there. Rows that are inserted
-- below a scan position are found when the caller omits the positions again (engine/pick_scan_positions.py).
-- Sizes: a queue whose states come to more than 1 MB is cut short and searched again by the next pick, so that the queues
-- of a worker do not wait for the large states of one. A compressed state counts as a hundred times its size, which is the
-- most that it can be; if that is too much, rows_up_to_size.sql measures.
-- Gates: admit_or_block_rows_by_partition.sql and admit_or_block_rows_by_limit.sql decide which rows may run, and block the
-- others, so that each row is skipped once. Fair queues: lock_fair_rows.sql finds the rows.
-- Index: instances_pick, one (queue, priority) at a time: stepping from priority to priority
-- (first_row_of_next_priority.sql), the search never reads rows that are due in the future, however urgent.
-- Locks: FOR NO KEY UPDATE SKIP LOCKED, so pickers wait neither for each other nor for a delivery in progress.
-- Long because: the loop shares its counters with every branch; passing them on would take more lines than it saves.
-- Guarded by tests/store/test_pick.py, test_guards.py, tests/interleavings/test_claim_claim.py.
create or replace function @schema.pick(
  worker text, queues text[], demands int[], known text[], lease float8, scan_positions jsonb default null,
  fair jsonb default null, free int[] default null, crashed int default null, last_chance boolean default true,
  with_payloads boolean default true
)
returns table (
  id bigint, fsm text, fsm_version int, step text, state jsonb, attempt bigint, claims bigint, seq bigint, queue text,
  priority smallint, partition_key text, unique_key bytea, parent_id bigint, awaits text[], limited text,
  inbox jsonb, children jsonb, visit bigint, step_errors int, crashes int, timed_out boolean, journal jsonb,
  is_woken_by_deadline boolean,
  report jsonb
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
  call_size constant int := greatest(
    cardinality(queues), cardinality(demands), cardinality(known), cardinality(free)
  );
  max_skipped constant int := 2000;  -- after so many skipped rows, return the claims found so far
  max_bytes constant int := 1000000;  -- and after so many bytes of states
  max_groups constant int := 100;  -- after so many groups of blocked rows, report no more of them
  -- Of one queue:
  queue_name text;
  demand int;                   -- rows still to find
  is_fair boolean;
  last_group text;
  is_cut_short boolean;         -- lock_fair_rows stopped before it had seen every group
  level int;                    -- index into the queue's scan positions
  level_position jsonb;
  level_priority int;
  head_due_at timestamptz;      -- the first row of the priority: its due_at,
  head_id bigint;               -- and its id
  search_began timestamptz;
  search_time interval;
  found_positions jsonb;
  next_at timestamptz;
  next_due_at timestamptz;
  skipped_count int;            -- rows blocked or left behind a busy gate
  needs_slot boolean;           -- rows were left that must not be claimed ahead
  state_bytes bigint;           -- of its claims
  is_full boolean;              -- rows were left because the states come to more than max_bytes
  claimed_before int;           -- rows claimed from the queues before it
  queue_report jsonb;
  -- Of one batch of found rows:
  found_rows tid[];
  found_bytes bigint;           -- of their states, at most
  found_count int;
  has_gates boolean;
  denied int;                   -- rows blocked
  denied_by_limits int;
  contended_count int;          -- rows left as they are: another session has locked their gate
  admitted_keys text[];
  admitted_ids bigint[];
  admitted_slots text[];
  refused jsonb;
  -- Of the whole call:
  claimed_rows tid[] := '{}';
  starting_rows tid[] := '{}';  -- those of them for which a slot is free
  crashed_left int := crashed;
  crashed_ids bigint[];         -- rows that unblock_crashed_rows has unblocked,
  crashed_gates text[];         -- and from which gates
  claimed_keys text[] := '{}';
  claimed_ids bigint[] := '{}';
  claimed_slots text[] := '{}';
  blocked_groups jsonb := '[]';
  queues_to_wake text[];
  queue_reports jsonb;
begin
  if call_size > 100000 then
    perform @schema.require_max_elements(call_size, 100000);
  end if;
  for queue_number in 1..coalesce(cardinality(queues), 0) loop
    queue_name := queues[queue_number];
    demand := demands[queue_number];
    next_at := null;
    skipped_count := 0;
    needs_slot := false;
    state_bytes := 0;
    is_full := false;
    is_fair := coalesce(fair ? queue_name, false);
    last_group := fair -> queue_name ->> 1;
    level_priority := -32769;  -- below the lowest
    level := -1;
    search_time := interval '0';
    found_positions := '[]';
    claimed_before := cardinality(claimed_rows);
    if coalesce(crashed_left, demand) + last_chance::int > 0 and coalesce(free[queue_number], demand) > 0 and exists (
      select from @schema.instances i
      where i.blocked_on in (@schema.gate_name('crashed', queue_name), @schema.gate_name('last_chance', queue_name))
    ) then
      select crashed_ids || unblocked.ids, crashed_gates || unblocked.gates into crashed_ids, crashed_gates
      from @schema.unblock_crashed_rows(
        queue_name, known, least(crashed_left, free[queue_number], demand), last_chance and crashed_ids is null
      ) as unblocked;
      crashed_left := case
        when starts_with(crashed_gates[1], 'last_chance/') then 0 else greatest(crashed - cardinality(crashed_ids), 0)
      end;
    end if;
    while demand > 0 loop
      level := level + 1;
      level_position := scan_positions -> queue_name -> level;
      search_began := clock_timestamp();
      select head.priority, head.due_at, head.id into level_priority, head_due_at, head_id
      from @schema.first_row_of_next_priority(queue_name, level_priority, level_position) as head;
      search_time := search_time + (clock_timestamp() - search_began);
      exit when level_priority is null;
      if head_due_at is null then
        found_positions := found_positions || jsonb_build_array(level_position);
        continue;
      end if;
      found_positions := found_positions || jsonb_build_array(
        case
          -- Rows that fall due now come in by transactions that began a little earlier.
          when head_due_at < now() - interval '1 second' then jsonb_build_array(level_priority, head_due_at, head_id)
          else jsonb_build_array(level_priority, now() - interval '1 second', 0)
        end
      );
      if head_due_at > now() then
        next_at := least(next_at, head_due_at);
        continue;
      end if;

      -- Rows whose gates are busy are blocked, and the search goes on behind them.
      while demand > 0 loop
        if is_fair then
          select fair_rows.found_rows, fair_rows.has_gates, fair_rows.last_group, fair_rows.is_cut_short
          into found_rows, has_gates, last_group, is_cut_short
          from @schema.lock_fair_rows(
            queue_name, level_priority, known, demand, fair -> queue_name ->> 0, last_group, claimed_rows
          ) as fair_rows;
          if is_cut_short then
            next_at := least(next_at, now() + interval '20 milliseconds');
          end if;
          exit when cardinality(found_rows) = 0;
          select sum(pg_column_size(i.state) * case when pg_column_compression(i.state) is null then 1 else 100 end)
          into found_bytes from @schema.instances i where i.ctid = any (found_rows);
        else
          select array_agg(candidate.ctid), bool_or(candidate.has_gates), sum(candidate.bytes)
          into found_rows, has_gates, found_bytes
          from (
            select i.ctid, coalesce(i.partition_key, i.slot_key, i.rate_key) is not null or i.crashes > 0
              or i.claimed_ahead as has_gates,
              pg_column_size(i.state) * case when pg_column_compression(i.state) is null then 1 else 100 end as bytes
            from @schema.instances i
            where i.queue = queue_name and i.priority = level_priority and i.due_at <= now()
              and (i.due_at, i.id) >= (head_due_at, head_id)
              and @schema.qualified_step_name(i.fsm, i.fsm_version, i.step) = any (known)
            order by i.due_at, i.id
            limit demand
            for no key update skip locked
          ) as candidate;
          exit when found_rows is null;
        end if;
        if state_bytes + found_bytes > max_bytes then
          found_count := cardinality(found_rows);
          select chosen.allowed, chosen.bytes into found_rows, found_bytes
          from @schema.rows_up_to_size(found_rows, max_bytes - state_bytes) as chosen;
          is_full := cardinality(found_rows) < found_count;
          if is_full and is_fair then
            select case when starts_with(i.group_key, (fair -> queue_name ->> 0) || '/') then i.group_key end
            into last_group
            from @schema.instances i where i.ctid = found_rows[cardinality(found_rows)];
          end if;
        end if;
        state_bytes := state_bytes + found_bytes;
        denied := 0;
        contended_count := 0;
        if has_gates then
          if not is_fair then
            select i.due_at, i.id + 1 into head_due_at, head_id from @schema.instances i
            where i.ctid = found_rows[cardinality(found_rows)];
          end if;
          if free is not null then
            select ahead.allowed, ahead.needs_slot into found_rows, needs_slot
            from @schema.claimable_rows(
              found_rows, greatest(free[queue_number] - (demands[queue_number] - demand), 0)
            ) as ahead;
            exit when cardinality(found_rows) = 0;
          end if;
          if exists (
            select from @schema.instances i where i.ctid = any (found_rows) and i.partition_key is not null
          ) then
            select admission.allowed, admission.denied, admission.contended, queues_to_wake || admission.woken_queues,
              admission.keys, admission.ids, admission.blocked_groups
            into found_rows, denied, contended_count, queues_to_wake, admitted_keys, admitted_ids, refused
            from @schema.admit_or_block_rows_by_partition(
              found_rows, claimed_keys, claimed_ids, case when skipped_count < 10 then 10 else 1 end
            ) as admission;
            claimed_keys := claimed_keys || admitted_keys;
            claimed_ids := claimed_ids || admitted_ids;
            if refused is not null and jsonb_array_length(blocked_groups) < max_groups then
              blocked_groups := blocked_groups || refused;
            end if;
          end if;
          if exists (
            select from @schema.instances i
            where i.ctid = any (found_rows) and coalesce(i.slot_key, i.rate_key) is not null
          ) then
            select admission.allowed, admission.denied, contended_count + admission.contended,
              queues_to_wake || admission.woken_queues, admission.slots, admission.blocked_groups
            into found_rows, denied_by_limits, contended_count, queues_to_wake, admitted_slots, refused
            from @schema.admit_or_block_rows_by_limit(
              found_rows, claimed_rows, claimed_slots, case when skipped_count < 10 then 10 else 1 end
            ) as admission;
            claimed_slots := claimed_slots || admitted_slots;
            denied := denied + denied_by_limits;
            if refused is not null and jsonb_array_length(blocked_groups) < max_groups then
              blocked_groups := blocked_groups || refused;
            end if;
          end if;
          skipped_count := skipped_count + denied + contended_count;
          if contended_count > 0 then
            next_at := least(next_at, now() + interval '10 milliseconds');  -- the gate may be free then
          end if;
        end if;
        claimed_rows := claimed_rows || found_rows;
        demand := demand - coalesce(cardinality(found_rows), 0);
        exit when not has_gates or needs_slot or is_full or skipped_count > max_skipped or (is_fair and denied = 0);
      end loop;
      exit when needs_slot;
      exit when demand <= 0;
      if is_full or skipped_count > max_skipped then
        next_at := now();
        exit;
      end if;

      select i.due_at into next_due_at from @schema.instances i
      where i.queue = queue_name and i.priority = level_priority and i.due_at > now() order by i.due_at limit 1;
      next_at := least(next_at, next_due_at);
    end loop;

    if free is not null then
      starting_rows := starting_rows || claimed_rows[claimed_before + 1 : claimed_before + free[queue_number]];
    end if;
    queue_report := null;
    if demand > 0 then
      queue_report := jsonb_build_object(
        'unmet', true, 'contended', skipped_count, 'next_due', extract(epoch from next_at - clock_timestamp())::float8
      );
      if needs_slot then
        queue_report := queue_report || '{"needs_slot": true}';
      end if;
    end if;
    if is_fair then
      queue_report := coalesce(queue_report, '{}') || jsonb_build_object('last_group', last_group);
    end if;
    if search_time > interval '5 milliseconds' then
      queue_report := coalesce(queue_report, '{}') || jsonb_build_object('scan_positions', found_positions);
    end if;
    if queue_report is not null then
      queue_reports := coalesce(queue_reports, '{}') || jsonb_build_object(queue_name, queue_report);
    end if;
  end loop;

  if crashed_ids is not null then
    update @schema.instances i set blocked_on = waiting.gate
    from unnest(crashed_ids, crashed_gates) as waiting (id, gate)
    where i.id = waiting.id and i.blocked_on is null and i.ctid <> all (claimed_rows);
  end if;
  if queue_reports is not null or queues_to_wake is not null or blocked_groups <> '[]' then
    report := jsonb_build_object('queues', queue_reports, 'woken_queues', queues_to_wake, 'blocked', blocked_groups);
    return next;
  end if;
  if cardinality(claimed_rows) = 0 then
    return;
  end if;

  return query
    with claimed as (
      update @schema.instances i set
        status = 'executing',
        claims = i.claims + 1,
        locked_by = worker,
        lease_expires_at = now() + make_interval(secs => lease),
        started_at = coalesce(i.started_at, now()),
        eligible_at = case  -- the history counts from here how long it waited
          when i.status in ('awaiting_signal', 'awaiting_children') then coalesce(i.await_deadline, i.eligible_at)
          else i.eligible_at
        end,
        -- A row that its deadline makes due still waits: a signal, or the last child, would have made it runnable.
        timed_out_claim = case
          when i.status in ('awaiting_signal', 'awaiting_children') then i.claims + 1 else i.timed_out_claim
        end,
        joined = i.joined or i.status = 'awaiting_children',
        await_deadline = case when i.awaits is not null then i.await_deadline end,
        children_pending = 0,
        token_at = null,
        seen = null,
        claimed_ahead = free is not null and i.ctid <> all (starting_rows),
        unique_scope = @schema.unique_scope_for_status(i.unique_scope, 'executing'),
        updated_at = now()
      where i.ctid = any (claimed_rows)
      returning i.*
    ),
    -- A barrier that its deadline has opened. The other barriers were handled when they opened.
    cancelled_rest as (
      insert into @schema.cascades (parent_id, first_round, last_round, origin, reason)
      select i.id, i.round, i.round, i.id, format('instance %s goes on without it', i.id) from claimed i
      where i.cancel_rest and i.joined
    )
    select
      i.id, i.fsm, i.fsm_version, i.step, i.state, i.attempt, i.claims, i.seq, i.queue, i.priority, i.partition_key,
      i.unique_key, i.parent_id, i.awaits,
      coalesce(i.slot_key, case when i.rate_key is not null then '' end),
      case when with_payloads and i.has_signals then @schema.inbox_of_claim(i.id) end,
      case when with_payloads and i.joined then @schema.children_of_claim(i.id, i.round) end,
      i.visit, i.step_errors, i.crashes, i.timed_out_claim is not null,
      case when with_payloads and i.has_journal then @schema.journal_of_claim(i.id, i.visit) end,
      i.timed_out_claim = i.claims,
      null::jsonb
    from claimed i
    order by i.priority, i.eligible_at, i.id;
end
$$;
