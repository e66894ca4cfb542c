-- require_valid_starts: raise 22023 if an instance to insert breaks a bound of the docs (docs/reference/api.md).
--
-- Parameters: arrays of insert, of the same length or, if all their values are null, shorter. A message names the first
-- value out of bounds; of a state or metadata its size only.
-- The table has no CHECKs for them: Postgres reads the text of every CHECK again in each statement that writes a row,
-- which made a flush of one row 5 % slower and an insert 7 %. The Python client has checked its values before.
-- Sizes are those of the text that Postgres writes, with its spaces: it can be half as long again as what the client has
-- measured, and a sealed state (encryption.py) a third longer. So half as much again is allowed here.
-- Locks: none. Guarded by tests/store/test_insert_bounds.py.
create or replace function @schema.require_valid_starts(
  fsms text[], versions int[], steps text[], states jsonb[], queues text[], partition_keys text[], delays float8[],
  schedule_ats timestamptz[], unique_keys bytea[], groups text[], metadatas jsonb[], keeps float8[]
)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  name_pattern constant text := '^[A-Za-z0-9_.:-]{1,200}$';
  max_seconds constant float8 := 36500 * 86400.0;
  problem text;
begin
  if greatest(array_ndims(fsms), array_ndims(steps), array_ndims(queues)) > 1 then
    raise exception 'machines, steps and queues must be arrays of one dimension' using errcode = '22023';
  end if;

  if (cardinality(fsms) = all (array[cardinality(versions), cardinality(steps), cardinality(states), cardinality(queues)])
    and cardinality(fsms) >= all (array_remove(array[
      cardinality(partition_keys), cardinality(delays), cardinality(schedule_ats), cardinality(unique_keys),
      cardinality(groups), cardinality(metadatas), cardinality(keeps)
    ], null))) is not true
  then
    raise exception 'each instance needs a machine, version, step, state and queue, and no other array may be longer'
      using errcode = '22023';
  end if;

  -- Most calls insert one machine into one queue: then looking at the first name is enough.
  if (
    fsms[1] ~ name_pattern and steps[1] ~ name_pattern and queues[1] ~ name_pattern
    and cardinality(array_remove(fsms, fsms[1])) = 0 and cardinality(array_remove(steps, steps[1])) = 0
    and cardinality(array_remove(queues, queues[1])) = 0
  ) is not true then
    select format('%s must be 1 to 200 characters out of A-Z a-z 0-9 _ . : - , got %s', given.what,
      coalesce(quote_literal(left(given.name, 80)), 'null')) into problem
    from (
      select distinct 'machine' as what, unnest(fsms) as name
      union all select distinct 'step', unnest(steps)
      union all select distinct 'queue', unnest(queues)
    ) as given
    where (given.name ~ name_pattern) is not true
    limit 1;
  end if;

  if problem is null then
    select case
      when octet_length(given.state::text) > 1500000
        then format('the state is %s bytes of JSON, at most 1000000 are allowed', octet_length(given.state::text))
      -- Each level takes more than 7 bytes.
      when pg_column_size(given.state) > 450
        and jsonb_path_exists(given.state, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")')
        then 'the state is nested deeper than 64 levels'
    end into problem
    from (select unnest(states) as state) as given
    where octet_length(given.state::text) > 1500000 or (
      pg_column_size(given.state) > 450
      and jsonb_path_exists(given.state, 'strict $.**{64} ? (@.type() == "array" || @.type() == "object")')
    )
    limit 1;
  end if;

  if problem is null and cardinality(partition_keys || groups) + cardinality(delays) + cardinality(schedule_ats)
    + cardinality(unique_keys) + cardinality(metadatas) + cardinality(keeps) > 0
  then
    select found.problem into problem from (
      select case
        when octet_length(given.unique_key) not between 1 and 512
          then format('unique_key must have 1 to 512 bytes, got %s', octet_length(given.unique_key))
        when octet_length(given.partition_key) not between 1 and 512
          then format('partition_key must have 1 to 512 bytes, got %s', octet_length(given.partition_key))
        when given.group_key !~ '^[A-Za-z0-9_.:-]{1,200}/.'
          then 'group_key must be a kind and a group, such as tenant/acme'
        when octet_length(substring(given.group_key from '/(.*)')) > 512
          then format('group_key must have 1 to 512 bytes, got %s', octet_length(given.group_key))
        when not given.delay between 0 and max_seconds
          then format('delay must be from 0 to 36500 days, got %s seconds', given.delay)
        when given.schedule_at < '0002-01-01 00:00+00' or given.schedule_at >= '9999-01-01 00:00+00'
          then 'schedule_at must be in the years 2 to 9998 in UTC'
        when not (given.keep between 0 and max_seconds or given.keep = 'Infinity')
          then format('keep must be from 0 to 36500 days, got %s seconds', given.keep)
        when jsonb_typeof(given.metadata) <> 'object' then 'metadata must be a JSON object'
        when octet_length(given.metadata::text) > 12000
          then format('metadata is %s bytes of JSON, at most 8000 are allowed', octet_length(given.metadata::text))
      end as problem
      from (
        select unnest(partition_keys) as partition_key, unnest(groups) as group_key, unnest(delays) as delay,
          unnest(schedule_ats) as schedule_at, unnest(unique_keys) as unique_key, unnest(metadatas) as metadata,
          unnest(keeps) as keep
      ) as given
    ) as found
    where found.problem is not null
    limit 1;
  end if;

  if problem is null and (1 <= all (versions)) is not true then
    problem := 'version must be a number from 1 on';
  end if;
  if problem is not null then
    raise exception using errcode = '22023', message = problem;
  end if;
end
$$;
