-- packed_outcomes: the outcomes that are packed into texts (append_to_history.sql), one row each.
--
-- The newest line comes first. A short line has no time and no worker of its own: it began so many microseconds after the full line before it, in the
-- same worker. The wait of a step that follows another one at once is 0. is_copied is true for the text of
-- a row that is full: record_transitions has copied it into `earlier` of the row of transitions with recorded_seq, so readers
-- leave it out.
-- A view and not a function: the view step_status reads it with the rights of its owner.
-- Index: primary keys, for an instance_id. Locks: none. Guarded by tests/store/test_history.py, test_plans.py.
create or replace view @schema.packed_outcomes as
select
  packed.instance_id, packed.recorded_seq, packed.is_copied, line.seq, line.step, line.outcome, line.next_step, line.attempt,
  line.started_at, line.duration, line.waited, line.cause, line.worker
from (
  select i.id as instance_id, null::bigint as recorded_seq, pg_catalog.starts_with(i.history, '!') as is_copied, i.history as lines
  from @schema.instances i where i.history is not null
  union all
  select transition.instance_id, transition.seq, false, transition.earlier
  from @schema.transitions transition where transition.earlier is not null
) as packed
cross join lateral (
  select
    pg_catalog.substr(fields[1], 2)::bigint as seq, fields[5] as step,
    case fields[4]
      when 'N' then 'Next' when 'R' then 'Retry' when 'A' then 'Await' when 'S' then 'ScheduleChildren'
      when 'D' then 'Done' when 'F' then 'Fail' when 'C' then 'Cancel'
    end as outcome,
    nullif(fields[6], '') as next_step, coalesce(fields[9]::bigint, 0) as attempt,
    pg_catalog.to_timestamp(
      (
        pg_catalog.first_value(fields[7]::bigint - fields[2]::bigint) over of_run
        + case when pg_catalog.cardinality(fields) > 7 then 0 else fields[2]::bigint end
      ) / 1000000::float8
    ) as started_at,
    fields[3]::bigint / 1000000::float8 as duration,
    greatest(coalesce(nullif(fields[8], '')::bigint - fields[2]::bigint, 0), 0) / 1000000::float8 as waited,
    coalesce(fields[10], 'next') as cause,
    nullif(pg_catalog.first_value(fields[11]) over of_run, '') as worker
  from (
    select split.fields, split.ord,
      pg_catalog.count(*) filter (where pg_catalog.cardinality(split.fields) > 7) over (order by split.ord desc) as run
    from (
      select pg_catalog.string_to_array(given.line, pg_catalog.chr(9)) as fields, given.ord
      from pg_catalog.string_to_table(pg_catalog.ltrim(packed.lines, '!'), pg_catalog.chr(10))
        with ordinality as given (line, ord)
      where given.line <> ''
    ) as split
  ) as runs
  window of_run as (partition by run order by ord desc)
) as line;
comment on view @schema.packed_outcomes is 'The part of the history that is packed into instances.history. history_of returns all of it.';
