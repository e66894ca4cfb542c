-- journal_of_claim: the checkpoint and activities that earlier executions of a visit have recorded, for the claim that
-- resumes it.
--
-- Returns {"checkpoint": [format, version, value], "activities": [[n, name, finished, result], ...]}, where either may
-- be null, or null if there is neither. A result is JSON as text: an array of numbers takes many times more as jsonb.
-- pick calls it for rows with has_journal.
-- Activities beyond 128 MB of results are left out: the claim must be readable whatever is in the journal. A worker
-- records 64 MB of compact JSON per visit (engine/step_journal.py), and the text of jsonb is at most twice as long.
-- Index: primary keys. Locks: none. Guarded by tests/store/test_claim_size.py.
create or replace function @schema.journal_of_claim(instance bigint, at_visit bigint)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
begin
  return (
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
        jsonb_build_array(recorded.n, recorded.name, recorded.error is null, recorded.result_text) order by recorded.n
      ) as several
      from (
        select text_row.*, sum(octet_length(text_row.result_text)) over (order by text_row.n rows unbounded preceding) as total
        from (
          select entry.n, entry.name, entry.error, entry.result::text as result_text
          from @schema.activities entry
          where entry.instance_id = instance and entry.visit = at_visit
          offset 0
        ) as text_row
      ) as recorded
      where coalesce(recorded.total, 0) <= 128000000
    ) as activity
    where checkpoint.one is not null or activity.several is not null
  );
end
$$;
