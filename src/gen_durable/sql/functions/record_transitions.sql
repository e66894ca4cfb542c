-- record_transitions: write the history of a flush, in its transaction.
--
-- Parameters: the arrays of flush.sql; ran_steps, the step that ran (null keeps no history), how many seconds ago it
-- began and how long it took; in extras `attempt`, if it was not 0, `error_type` and `traceback` of an exception, and
-- `with_state`, to store the state after the outcome too; written, the ids that flush has written, null for all.
-- A statement of its own: with history off, a flush has nothing more to do. The arrays are unnested in the select list:
-- as a function in FROM, each would first be copied into a tuplestore.
-- Index: primary key, for states. Locks: none beyond those of flush.
create or replace function @schema.record_transitions(
  ids bigint[], seqs bigint[], kinds text[], steps text[], errors text[], extras jsonb[], worker text, ran_steps text[],
  started_ago float8[], durations float8[], written bigint[]
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  clock constant float8 := extract(epoch from statement_timestamp());
begin
  if written is not null then
    ran_steps := array(
      select case when outcome.id = any (written) then outcome.ran_step end
      from unnest(ids, ran_steps) as outcome (id, ran_step)
    );
  end if;
  insert into @schema.transitions (
    instance_id, seq, step, outcome, next_step, attempt, started_at, duration, worker, error, error_type,
    traceback, state
  )
  select
    outcome.id, outcome.seq + 1, outcome.ran_step,
    case outcome.kind
      when 'continue' then 'Next' when 'next' then 'Next' when 'retry' then 'Retry' when 'await' then 'Await'
      when 'children' then 'ScheduleChildren' when 'done' then 'Done' when 'fail' then 'Fail' when 'cancel' then 'Cancel'
    end,
    coalesce(outcome.step, case when outcome.kind not in ('done', 'fail', 'cancel') then outcome.ran_step end),
    coalesce((outcome.extra ->> 'attempt')::bigint, 0), to_timestamp(clock - outcome.ago),
    outcome.duration, worker, outcome.error, outcome.extra ->> 'error_type', outcome.extra ->> 'traceback',
    case when outcome.extra ? 'with_state' then (select i.state from @schema.instances i where i.id = outcome.id) end
  from (
    select unnest(ids) as id, unnest(seqs) as seq, unnest(kinds) as kind, unnest(steps) as step,
      unnest(errors) as error, unnest(extras) as extra, unnest(ran_steps) as ran_step,
      unnest(started_ago) as ago, unnest(durations) as duration
  ) as outcome
  where outcome.ran_step is not null;
end
$$;
