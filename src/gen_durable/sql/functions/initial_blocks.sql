-- initial_blocks: of rows about to be inserted together, the gates that those wait for which surely cannot run at once.
--
-- In: the columns of insert. Out: per row a gate, or null. Of a partition key the first may run; of a limit as many as it
-- lets run when nobody else does, in each queue and of each step: perhaps nobody knows the others. A row with a partition key is not held against its limits here: it meets
-- them when it is the head of its key.
create or replace function @schema.initial_blocks(
  fsms text[], versions int[], steps text[], queues text[], priorities smallint[], partition_keys text[], slot_keys text[], rate_keys text[], delays float8[],
  schedule_ats timestamptz[]
)
returns text[]
language sql
set search_path = pg_catalog, pg_temp
as $$
  select array_agg(case when r.place > r.free then r.gate end order by r.n)
  from (
    select o.n, o.gate,
      case when o.gate is not null and o.at <= now() then
        row_number() over (partition by o.gate, o.line, o.at <= now() order by o.priority, o.at, o.n)
      end as place,
      case when o.line is null then 1 else least(coalesce(l.slots, l.burst), 100) end as free
    from (
      select o.n, coalesce(o.priority, 0) as priority,
        coalesce(o.at, now() + make_interval(secs => coalesce(o.delay, 0))) as at,
        coalesce(
          @schema.gate('partition', o.partition_key), @schema.gate('slot', o.slot_key), @schema.gate('rate', o.rate_key)
        ) as gate,
        case when o.partition_key is null then concat_ws('/', o.queue, o.fsm, o.version, o.step) end as line
      from unnest(fsms, versions, steps, queues, priorities, partition_keys, slot_keys, rate_keys, delays, schedule_ats)
        with ordinality as o (fsm, version, step, queue, priority, partition_key, slot_key, rate_key, delay, at, n)
    ) as o
    left join @schema.limits l on o.line is not null and l.name = split_part(@schema.gate_key(o.gate), '/', 1)
  ) as r
$$;
