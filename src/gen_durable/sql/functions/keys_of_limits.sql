-- keys_of_limits: translate the limits that rows name into the keys that are stored with the rows.
--
-- Parameter: per row null, or [[name, partition or null, weight], ...].
-- Returns arrays of the same length: the key of the concurrency limit, the key of the rate limit, and the weight if it
-- is not 1.
-- Raises GD002 for an undeclared limit, GD003 for a weight that the limit can never grant, GD004 for two limits of one
-- kind.
-- Index: the primary key of limits. Locks: none.
-- Guarded by tests/flows/test_limit_errors.py.
create or replace function @schema.keys_of_limits(
  limits_of_rows jsonb[], out slot_keys text[], out rate_keys text[], out weights int[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  unknown_names text[];
  repeated_kind text;
  too_heavy record;
begin
  perform @schema.require_max_elements(max(jsonb_array_length(row_limits.items)), 10)
  from unnest(limits_of_rows) as row_limits (items) where jsonb_typeof(row_limits.items) = 'array';
  select array_agg(distinct checked.unknown_name) filter (where checked.unknown_name is not null),
    max(checked.repeated_kind)
  into unknown_names, repeated_kind
  from (
    select case when policy.name is null then named.item ->> 0 end as unknown_name,
      case when count(*) over (partition by row_limits.position, policy.kind) > 1 then policy.kind end as repeated_kind
    from unnest(limits_of_rows) with ordinality as row_limits (items, position)
    cross join lateral jsonb_array_elements(row_limits.items) as named (item)
    left join @schema.limits policy on policy.name = named.item ->> 0
  ) as checked;
  if unknown_names is not null then
    raise exception using errcode = 'GD002',
      message = format('Unknown limit ''%s''', array_to_string(unknown_names, ''', ''')),
      hint = format('Declare it with Worker(limits=...) or `gen-durable limits set %s`.', unknown_names[1]);
  end if;
  if repeated_kind is not null then
    raise exception 'a step can have one limit of the kind %, not two', repeated_kind using errcode = 'GD004';
  end if;

  select policy.name, policy.kind, policy.burst, (named.item ->> 2)::int as weight into too_heavy
  from unnest(limits_of_rows) as row_limits (items)
  cross join lateral jsonb_array_elements(row_limits.items) as named (item)
  join @schema.limits policy on policy.name = named.item ->> 0
  where (named.item ->> 2)::int > coalesce(policy.burst, 1)
  limit 1;
  if found then
    raise exception using errcode = 'GD003', message = case too_heavy.kind
      when 'rate' then format(
        'a weight of %s is above the burst of limit %s, which is %s', too_heavy.weight, too_heavy.name, too_heavy.burst
      )
      else format('limit %s is a concurrency limit, which takes no weight', too_heavy.name)
    end,
    hint = 'Change the limit, or pass a smaller weight.';
  end if;

  select
    array_agg(keys.slot_key order by keys.position),
    array_agg(keys.rate_key order by keys.position),
    array_agg(keys.weight order by keys.position)
  into slot_keys, rate_keys, weights
  from (
    select row_limits.position,
      max(found_limit.key) filter (where found_limit.kind = 'concurrency') as slot_key,
      max(found_limit.key) filter (where found_limit.kind = 'rate') as rate_key,
      max(found_limit.weight) filter (where found_limit.kind = 'rate' and found_limit.weight > 1) as weight
    from unnest(limits_of_rows) with ordinality as row_limits (items, position)
    left join lateral (
      select policy.kind, (named.item ->> 0) || coalesce('/' || (named.item ->> 1), '') as key,
        (named.item ->> 2)::int as weight
      from jsonb_array_elements(row_limits.items) as named (item)
      join @schema.limits policy on policy.name = named.item ->> 0
    ) as found_limit on true
    group by row_limits.position
  ) as keys;
end
$$;
