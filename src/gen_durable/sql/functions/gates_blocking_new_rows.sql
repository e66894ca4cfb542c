-- gates_blocking_new_rows: the gates of those rows of one insert that cannot start at once.
--
-- Parameters: columns of insert, in parallel. Returns per row a gate to insert it blocked on, or null.
-- Of a partition key, the first due row may start. Of a limit, as many rows as it admits when it is unused (at most
-- 100) may start, for each queue and step: a worker may know only one of them. A row with a partition key is not
-- counted against its limits: admit_or_block_rows_by_limit does that when the row is the head of its key.
-- The blocks save picks from finding and blocking the rows one by one; they need not be exact.
-- Index: the primary key of limits. Locks: none.
-- Guarded by tests/store/test_partition.py (test_of_one_insert_only_the_first_of_a_key_is_to_be_picked).
create or replace function @schema.gates_blocking_new_rows(
  fsms text[], versions int[], steps text[], queues text[], priorities smallint[], partition_keys text[],
  slot_keys text[], rate_keys text[], delays float8[], schedule_ats timestamptz[]
)
returns text[]
language sql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  select array_agg(case when ranked.place > ranked.admitted then ranked.gate end order by ranked.position)
  from (
    select gated.position, gated.gate,
      case when gated.gate is not null and gated.eligible_at <= now() then
        row_number() over (
          partition by gated.gate, gated.queue_step, gated.eligible_at <= now()
          order by gated.priority, gated.eligible_at, gated.position
        )
      end as place,
      case when gated.queue_step is null then 1 else least(coalesce(policy.slots, policy.burst), 100) end as admitted
    from (
      select new_row.position, coalesce(new_row.priority, 0) as priority,
        coalesce(new_row.schedule_at, now() + make_interval(secs => coalesce(new_row.delay, 0))) as eligible_at,
        coalesce(
          @schema.gate_name('partition', new_row.partition_key),
          @schema.gate_name('slot', new_row.slot_key),
          @schema.gate_name('rate', new_row.rate_key)
        ) as gate,
        case
          when new_row.partition_key is null
          then concat_ws('/', new_row.queue, new_row.fsm, new_row.version, new_row.step)
        end as queue_step  -- null for a row that waits for its partition key
      from unnest(fsms, versions, steps, queues, priorities, partition_keys, slot_keys, rate_keys, delays, schedule_ats)
        with ordinality as new_row (
          fsm, version, step, queue, priority, partition_key, slot_key, rate_key, delay, schedule_at, position
        )
    ) as gated
    left join @schema.limits policy
      on gated.queue_step is not null and policy.name = split_part(@schema.key_of_gate(gated.gate), '/', 1)
  ) as ranked
$$;
