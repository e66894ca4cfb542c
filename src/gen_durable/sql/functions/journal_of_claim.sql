-- journal_of_claim: the checkpoint and activities that earlier executions of a visit have recorded, for the claim that
-- resumes it.
--
-- Returns {"checkpoint": [format, version, value], "activities": [[n, name, finished, result], ...]}, where either may
-- be null, or null if there is neither. pick calls it for rows with has_journal.
-- Index: primary keys. Locks: none.
create or replace function @schema.journal_of_claim(instance bigint, at_visit bigint)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
  select jsonb_build_object('checkpoint', checkpoint.one, 'activities', activity.several)
  from (
    select (
      select jsonb_build_array(checkpoint.format, checkpoint.version, checkpoint.value)
      from @schema.checkpoints checkpoint
      where checkpoint.instance_id = instance and checkpoint.visit = at_visit
    ) as one
  ) as checkpoint
  cross join (
    select jsonb_agg(
      jsonb_build_array(activity.n, activity.name, activity.error is null, activity.result) order by activity.n
    ) as several
    from @schema.activities activity where activity.instance_id = instance and activity.visit = at_visit
  ) as activity
  where checkpoint.one is not null or activity.several is not null
$$;
