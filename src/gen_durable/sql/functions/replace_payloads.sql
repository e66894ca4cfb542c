-- replace_payloads: write payloads of one column that were encrypted again, for `gen-durable reencrypt`.
--
-- Parameters: source, the table; part, the column; and per row its key, its instance, its former value and its new
-- value, as payloads_page.sql returns them.
-- Returns how many were written, and the instances that were not touched, because they execute or are locked: the
-- caller comes back to these. A value that has changed since it was read is left alone: its writer has encrypted it.
-- The text of the statement is composed from constants.
-- Index: primary keys. Locks: the instances in id order, with SKIP LOCKED: a delivery or a commit is not delayed by
-- more than one batch. The rows of an instance that does not execute are written under its lock only.
-- Guarded by tests/security/test_reencrypt.py.
create or replace function @schema.replace_payloads(
  source text, part text, keys jsonb, instances bigint[], former text[], fresh text[],
  out written int, out busy bigint[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
  free bigint[];
  same_row text;
begin
  perform @schema.require_max_elements(greatest(
    jsonb_array_length(keys), cardinality(instances), cardinality(former), cardinality(fresh)
  ), 100000);
  if (source || '.' || part = any (array[
    'instances.state', 'instances.result', 'instances.last_error', 'instances.last_traceback', 'signals.payload',
    'transitions.state', 'transitions.error', 'transitions.traceback', 'checkpoints.value', 'activities.parameters',
    'activities.result', 'activities.error', 'progress.message', 'progress.detail'
  ])) is not true then
    raise exception 'no payload is in %.%', source, part using errcode = '22023';
  end if;
  free := array(
    select i.id from @schema.instances i
    where i.id = any (instances) and i.status <> 'executing'
    order by i.id for no key update skip locked
  );
  same_row := case source
    when 'instances' then 'stored.id = (given.key ->> 0)::bigint'
    when 'signals' then 'stored.id = (given.key ->> 0)::bigint'
    when 'transitions' then 'stored.instance_id = (given.key ->> 0)::bigint '
      'and stored.seq = (given.key ->> 1)::bigint and stored.n = (given.key ->> 2)::bigint'
    when 'checkpoints' then 'stored.instance_id = (given.key ->> 0)::bigint'
    when 'activities' then 'stored.instance_id = (given.key ->> 0)::bigint '
      'and stored.visit = (given.key ->> 1)::bigint and stored.n = (given.key ->> 2)::int'
    when 'progress' then 'stored.instance_id = (given.key ->> 0)::bigint '
      'and stored.step = given.key ->> 1 and stored.branch = given.key ->> 2'
  end;
  execute format(
    $sql$
      update @schema.%1$I stored set %2$I = given.fresh::%3$s %4$s
      from rows from (jsonb_array_elements($1), unnest($2), unnest($3), unnest($4))
        as given (key, instance, former, fresh)
      where %5$s and stored.%2$I::text = given.former and given.instance = any ($5)
    $sql$,
    source, part,
    case when part in ('last_error', 'last_traceback', 'error', 'traceback', 'message') then 'text' else 'jsonb' end,
    case when source = 'signals' then ', size = octet_length(given.fresh)' else '' end,
    same_row
  ) using keys, instances, former, fresh, free;
  get diagnostics written = row_count;
  busy := array(
    select i.id from @schema.instances i where i.id = any (instances) and not i.id = any (free)
  );
end
$$;

comment on function @schema.replace_payloads(text, text, jsonb, bigint[], text[], text[]) is
  'Writes payloads that gen-durable reencrypt has encrypted again.';
