-- limit_states: the current use of every limit: one row per partition that is in use or waited for.
--
-- Returns the policy, and: `key`, the limit's key, null for a limit that is not used; `taken`, slots in use, or tokens
-- missing from the bucket; `waiting`, rows that wait for the limit; `next_token`, the seconds until the bucket has a
-- token, 0 if it has one, null for a concurrency limit.
-- Index: instances_slot, instances_limited, instances_token_due. Locks: none.
-- Guarded by tests/store/test_limits.py (test_limits_as_they_stand), test_guards.py.
create or replace function @schema.limit_states()
returns table (
  name text, kind text, slots int, period float8, burst int, key text, taken float8, waiting bigint, next_token float8
)
language sql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  with usage as (
    select counted.kind, counted.key, sum(counted.taken) as taken, sum(counted.waiting) as waiting
    from (
      select 'concurrency' as kind, i.slot_key as key, count(*) as taken, 0 as waiting
      from @schema.instances i where i.status = 'executing' and i.slot_key is not null group by i.slot_key
      union all
      select 'concurrency', slot.slot_key, count(*), 0
      from @schema.step_slots slot
      join @schema.instances i on i.id = slot.instance_id and i.claims = slot.claim and i.lease_expires_at is not null
      group by slot.slot_key
      union all
      select case when starts_with(i.blocked_on, 'slot/') then 'concurrency' else 'rate' end,
        @schema.key_of_gate(i.blocked_on), 0, count(*)
      from @schema.instances i where not starts_with(i.blocked_on, 'partition/')
        and (starts_with(i.blocked_on, 'slot/') or starts_with(i.blocked_on, 'rate/'))
      group by i.blocked_on
      union all
      select 'rate', i.rate_key, 0, count(*)
      from @schema.instances i where i.token_at is not null group by i.rate_key
      union all
      select 'rate', bucket.key, 0, 0 from @schema.rate_buckets bucket where bucket.drained_until > clock_timestamp()
    ) as counted
    group by counted.kind, counted.key
  )
  select policy.name, policy.kind, policy.slots, policy.period, policy.burst, usage.key,
    case policy.kind
      when 'concurrency' then coalesce(usage.taken, 0)
      else ceil(coalesce(drained.seconds, 0) / policy.period)
    end::float8,
    coalesce(usage.waiting, 0)::bigint,
    case
      when policy.kind = 'rate' then greatest(coalesce(drained.seconds, 0) + (1 - policy.burst) * policy.period, 0)
    end
  from @schema.limits policy
  left join usage on usage.kind = policy.kind and split_part(usage.key, '/', 1) = policy.name
  left join lateral (
    select greatest(extract(epoch from bucket.drained_until - clock_timestamp()), 0)::float8 as seconds
    from @schema.rate_buckets bucket where bucket.key = usage.key
  ) as drained on true
  order by policy.name, usage.key
$$;

comment on function @schema.limit_states() is
  'Returns each limit with its policy, the slots or tokens in use and the number of waiting instances.';
