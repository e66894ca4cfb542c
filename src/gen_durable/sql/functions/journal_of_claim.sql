-- journal_of_claim: the checkpoint and activities that earlier executions of a visit have recorded, for the claim that
-- resumes it.
--
-- Returns {"activities": [[n, name, finished, result], ...], "checkpoint": [format, version, value]}, where either may
-- be null, or null if there is neither. A result is JSON as text: an array of numbers takes many times more as jsonb.
-- `activities` is true if they are larger than 100 kB together: a pick is one statement for all queues of a worker, and
-- must stay short. The worker then reads them page by page (activities_page.sql, engine/claim_part_loader.py). Their stored sizes
-- are known without reading them; a compressed one counts as a hundred times as large.
-- pick calls it for rows with has_journal.
-- Index: primary keys. Locks: none. Guarded by tests/store/test_claim_size.py.
create or replace function @schema.journal_of_claim(instance bigint, at_visit bigint)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  stored_bytes bigint;
  activities jsonb := 'true';
begin
  select sum(
    pg_column_size(entry.result) * case when pg_column_compression(entry.result) is null then 1 else 100 end
  ) into stored_bytes
  from @schema.activities entry
  where entry.instance_id = instance and entry.visit = at_visit;
  if coalesce(stored_bytes, 0) <= 100000 then
    activities := (
      select jsonb_agg(
        jsonb_build_array(entry.n, entry.name, entry.error is null, entry.result::text) order by entry.n
      )
      from @schema.activities entry
      where entry.instance_id = instance and entry.visit = at_visit
    );
  end if;
  return (
    select jsonb_build_object('checkpoint', checkpoint.one, 'activities', activities)
    from (
      select (
        select jsonb_build_array(checkpoint.format, checkpoint.version, checkpoint.value)
        from @schema.checkpoints checkpoint
        where checkpoint.instance_id = instance and checkpoint.visit = at_visit
      ) as one
    ) as checkpoint
    where checkpoint.one is not null or activities is not null
  );
end
$$;
