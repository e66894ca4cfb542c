-- journal_of: the checkpoint and activities that earlier executions of a visit have recorded, for the claim that
-- resumes it.
--
-- Returns {"checkpoint": [format, version, value], "activities": [[n, name, finished, result], ...]}, where either may
-- be null, or null if there is neither. pick calls it for rows with has_journal.
-- Index: primary keys. Locks: none.
create or replace function @schema.journal_of(instance bigint, at_visit int)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select jsonb_build_object('checkpoint', c.one, 'activities', a.several)
  from (
    select (
      select jsonb_build_array(c.format, c.version, c.value) from @schema.checkpoints c
      where c.instance_id = instance and c.visit = at_visit
    ) as one
  ) as c
  cross join (
    select jsonb_agg(jsonb_build_array(a.n, a.name, a.error is null, a.result) order by a.n) as several
    from @schema.activities a where a.instance_id = instance and a.visit = at_visit
  ) as a
  where c.one is not null or a.several is not null
$$;
