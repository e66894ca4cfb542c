-- step_status: the status of each step that an instance has visited.
--
-- Derived from the row, its history (as in transitions_of.sql) and its progress: nothing is written for it. A visit begins after an outcome that
-- leads on (flush.sql): any but Retry, an Await of the same step and the ends. The row's own visit is always shown, also
-- without a history; of a trimmed history the first visit may be incomplete. A progress report has no visit: it belongs
-- to the last visit of its step, unless it is older.
-- Rights: the view runs with those of its owner; viewers are granted all columns but payloads (roles.sql).
-- Index: primary keys, for an instance_id. Locks: none. Guarded by tests/store/test_step_status.py, test_plans.py.
create or replace view @schema.step_status as
select
  i.id as instance_id, i.fsm, visited.visit, visited.step,
  case
    when visited.visit < i.visit then 'done'
    when i.status = 'executing' then 'running'
    when i.status in ('awaiting_signal', 'awaiting_children') then 'waiting'
    when i.status <> 'runnable' then i.status::text
    when i.attempt > 0 or visited.outcome in ('Retry', 'Fail', 'Cancel', 'Crashed') then 'retrying'
    else 'pending'
  end as status,
  case
    when visited.visit < i.visit then visited.attempts
    else greatest(visited.attempts, i.attempt) + (i.status = 'executing')::int
  end as attempts,
  case
    when visited.started_at is not null then visited.started_at
    when visited.visit = 0 then i.started_at
    when visited.visit = i.visit and i.status = 'executing' then i.updated_at
  end as started_at,
  case when visited.visit < i.visit then visited.finished_at else i.finished_at end as finished_at,
  case when visited.visit = i.visit and i.status = 'executing' then i.locked_by else visited.worker end as worker,
  visited.outcome, visited.next_step,
  (
    select activity.name from @schema.activities activity
    where activity.instance_id = i.id and activity.visit = visited.visit
    order by activity.instance_id desc, activity.visit desc, activity.n desc
    limit 1
  ) as activity,
  report.fraction, report.message, report.detail,
  case when visited.visit < i.visit then visited.error else i.last_error end as error
from @schema.instances i
cross join lateral (
  with recorded as materialized (
    select * from @schema.transitions transition where transition.instance_id = i.id and transition.n = 0
  ),
  outcomes as materialized (
    select
      recorded.seq, recorded.step, recorded.outcome, recorded.next_step, recorded.attempt, recorded.started_at,
      recorded.duration, recorded.worker, recorded.error
    from recorded
    union all
    select
      packed.seq, packed.step, packed.outcome, packed.next_step, packed.attempt, packed.started_at, packed.duration,
      packed.worker, null
    from @schema.packed_outcomes packed
    where packed.instance_id = i.id and not packed.is_copied
      and not exists (select from recorded where recorded.seq = packed.seq)
  )
  select
    entry.visit, last_entry.step, entry.attempts, entry.started_at, last_entry.finished_at, last_entry.worker,
    last_entry.outcome, last_entry.next_step, last_entry.error,
    lag(last_entry.finished_at) over of_step as left_before,
    row_number() over (partition by last_entry.step order by entry.visit desc) = 1 as is_last_of_step
  from (
    select
      transition.visit, max(transition.seq) as last_seq, min(transition.started_at) as started_at,
      greatest(count(transition.seq), coalesce(max(transition.attempt) + 1, 0)) as attempts
    from (
      select
        recorded.seq, recorded.attempt, recorded.started_at,
        coalesce(
          max(recorded.seq) filter (
            where recorded.outcome in ('Next', 'ScheduleChildren')
              or (recorded.outcome = 'Await' and recorded.next_step <> recorded.step)
          ) over (order by recorded.seq rows between unbounded preceding and 1 preceding),
          least(min(recorded.seq) over () - 1, i.visit)
        ) as visit
      from outcomes recorded
      union all
      select null, null, null, i.visit
    ) as transition
    group by transition.visit
  ) as entry
  cross join lateral (
    select
      recorded.step, recorded.started_at + make_interval(secs => recorded.duration) as finished_at, recorded.worker,
      recorded.outcome, recorded.next_step, recorded.error
    from outcomes recorded where recorded.seq = entry.last_seq
    union all
    select i.step, null, null, null, null, null where entry.last_seq is null
  ) as last_entry
  window of_step as (partition by last_entry.step order by entry.visit)
) as visited
left join lateral (
  select reported.fraction, reported.message, reported.detail
  from @schema.progress reported
  where reported.instance_id = i.id and reported.step = visited.step and visited.is_last_of_step
    and (visited.left_before is null or reported.updated_at >= visited.left_before)
  order by reported.branch = '' desc, reported.updated_at desc
  limit 1
) as report on true;
comment on view @schema.step_status is
  'One row per visit of a step: its status, attempts, times and progress. Derived; for one instance: where instance_id = 42.';
comment on column @schema.step_status.visit is 'The seq with which the instance entered the step.';
comment on column @schema.step_status.status is
  'pending, running, waiting (for signals or children), retrying, done, failed or cancelled.';
comment on column @schema.step_status.attempts is 'Executions of the step in this visit, the running one included.';
comment on column @schema.step_status.started_at is 'When its first execution began.';
comment on column @schema.step_status.finished_at is 'When the step led on to another one, or ended the instance.';
comment on column @schema.step_status.outcome is 'Its last outcome, if the machine keeps a history.';
comment on column @schema.step_status.activity is 'The last activity (ctx.run) that it has finished or that has failed.';
comment on column @schema.step_status.fraction is
  'Of its progress report without a branch, else of the latest report of a branch; so are message and detail.';
