-- record_progress: store progress reports of steps.
--
-- Parameters: one array per column, in the order of ids: id and epoch, step and branch, fraction, message, detail.
-- Returns the ids of rows that other sessions had locked; the caller repeats their reports. A report of a claim that
-- was taken over changes nothing.
-- The fence has no seq: a report that arrives just after the outcome of its step is still about that step.
-- Index: primary keys. Locks: id order, SKIP LOCKED: a report never waits (tests/store/test_no_waiting.py).
create or replace function @schema.record_progress(
  ids bigint[], claims bigint[], steps text[], branches text[], fractions float8[], messages text[], details jsonb[]
)
returns table (locked bigint)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  locked_ids bigint[];
begin
  perform @schema.require_max_elements(greatest(
    cardinality(ids), cardinality(record_progress.claims), cardinality(steps), cardinality(branches),
    cardinality(fractions), cardinality(messages), cardinality(details)
  ), 100000);
  select coalesce(array_agg(distinct locked_row.id), '{}') into locked_ids
  from (
    select i.id
    from unnest(ids, record_progress.claims) as given (id, epoch)
    join @schema.instances i on i.id = given.id and i.claims = given.epoch
    order by i.id
    for no key update of i skip locked
  ) as locked_row;
  update @schema.instances i set has_journal = true where i.id = any (locked_ids) and not i.has_journal;
  insert into @schema.progress as report (instance_id, step, branch, fraction, message, detail)
  select distinct on (given.id, given.step, given.branch)
    given.id, given.step, given.branch, given.fraction, given.message, given.detail
  from unnest(ids, record_progress.claims, steps, branches, fractions, messages, details) with ordinality
    as given (id, epoch, step, branch, fraction, message, detail, ord)
  join @schema.instances i on i.id = given.id and i.claims = given.epoch
  where given.id = any (locked_ids)
  order by given.id, given.step, given.branch, given.ord desc
  on conflict on constraint progress_pkey do update set
    fraction = excluded.fraction,
    message = excluded.message,
    detail = excluded.detail,
    updated_at = now();

  return query
    select distinct given.id
    from unnest(ids, record_progress.claims) as given (id, epoch)
    join @schema.instances i on i.id = given.id and i.claims = given.epoch
    where given.id <> all (locked_ids);
end
$$;
