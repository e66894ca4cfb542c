-- limit_states: every limit as it stands: one row for each of its partitions that is in use or waited for.
--
-- taken: slots taken, or tokens gone from the bucket. waiting: rows that wait for it. next_token: in how many seconds there
-- is a token (0: now). A limit that nobody uses has one row, without a key.
-- Index: instances_slot, instances_limited, instances_token_due.
create or replace function @schema.limit_states()
returns table (
  name text, kind text, slots int, period float8, burst int, key text, taken float8, waiting bigint, next_token float8
)
language sql
set search_path = pg_catalog, pg_temp
as $$
  with used as (
    select u.kind, u.key, sum(u.taken) as taken, sum(u.waiting) as waiting
    from (
      select 'concurrency' as kind, i.slot_key as key, count(*) as taken, 0 as waiting
      from @schema.instances i where i.status = 'executing' and i.slot_key is not null group by i.slot_key
      union all
      select 'concurrency', s.slot_key, count(*), 0
      from @schema.step_slots s
      join @schema.instances i on i.id = s.instance_id and i.claims = s.claim and i.lease_expires_at is not null
      group by s.slot_key
      union all
      select case when starts_with(i.blocked_on, 'slot/') then 'concurrency' else 'rate' end, @schema.gate_key(i.blocked_on), 0,
        count(*)
      from @schema.instances i where not starts_with(i.blocked_on, 'partition/') group by i.blocked_on
      union all
      select 'rate', i.rate_key, 0, count(*)
      from @schema.instances i where i.token_at is not null group by i.rate_key
      union all
      select 'rate', b.key, 0, 0 from @schema.rate_buckets b where b.drained_until > clock_timestamp()
    ) as u
    group by u.kind, u.key
  )
  select l.name, l.kind, l.slots, l.period, l.burst, u.key,
    case l.kind when 'concurrency' then coalesce(u.taken, 0) else ceil(coalesce(d.seconds, 0) / l.period) end::float8,
    coalesce(u.waiting, 0)::bigint,
    case when l.kind = 'rate' then greatest(coalesce(d.seconds, 0) + (1 - l.burst) * l.period, 0) end
  from @schema.limits l
  left join used u on u.kind = l.kind and split_part(u.key, '/', 1) = l.name
  left join lateral (
    select greatest(extract(epoch from b.drained_until - clock_timestamp()), 0)::float8 as seconds
    from @schema.rate_buckets b where b.key = u.key
  ) as d on true
  order by l.name, u.key
$$;
