-- record_transitions: write rows of the history for outcomes that a flush has packed, in its transaction.
--
-- Parameters: the arrays of flush.sql; worker; recorded, the ids whose outcome has an error or a state to keep, and those
-- whose packed history is full. The row of the latter holds the packed text.
-- A statement of its own: most flushes have nothing to do here. The outcome is the first line of instances.history; a short
-- line is recorded only if it ends a full text, and has in its seventh field how long ago the step began.
-- Index: primary key. Locks: none beyond those of flush.
create or replace function @schema.record_transitions(
  ids bigint[], errors text[], extras jsonb[], worker text, recorded bigint[]
)
returns void
language sql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
  insert into @schema.transitions (
    instance_id, seq, step, outcome, next_step, attempt, started_at, duration, waited, cause, worker, error, error_type,
    traceback, state, earlier
  )
  select
    made.id, made.seq, made.fields[5],
    case made.fields[4]
      when 'N' then 'Next' when 'R' then 'Retry' when 'A' then 'Await' when 'S' then 'ScheduleChildren'
      when 'D' then 'Done' when 'F' then 'Fail' when 'C' then 'Cancel'
    end,
    nullif(made.fields[6], ''), coalesce(made.fields[9]::bigint, 0),
    statement_timestamp() - make_interval(secs => made.ago / 1000000::float8), made.fields[3]::bigint / 1000000::float8,
    greatest(coalesce(nullif(made.fields[8], '')::bigint - made.ago, 0), 0) / 1000000::float8, coalesce(made.fields[10], 'next'), worker,
    made.error, made.extra ->> 'error_type', made.extra ->> 'traceback',
    case when made.extra ? 'with_state' then made.state end,
    case when starts_with(made.history, '!') then substr(made.history, 2) end
  from (
    select i.id, i.seq, i.state, i.history, outcome.error, outcome.extra, line.fields,
      case when starts_with(line.fields[1], '*') then line.fields[7] else line.fields[2] end::bigint as ago
    from unnest(ids, errors, extras) as outcome (id, error, extra)
    join @schema.instances i on i.id = outcome.id
    cross join lateral (
      select string_to_array(split_part(ltrim(i.history, '!'), chr(10), 1), chr(9)) as fields offset 0
    ) as line
    where outcome.id = any (recorded)
  ) as made
$$;
