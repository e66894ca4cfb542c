-- filter_sql: the SQL that finds the instances that match a filter, newest first. list.sql and count.sql execute it.
--
-- Parameters: wanted, a JSON object: status (an array), machine, version, step, queue, partition_key, parent,
-- unique_key (hex, also of instances that released it), metadata (contained in the instance's), due and blocked
-- (booleans), error (a part of last_error, in any case; only for logins that may read it), and inserted_after, inserted_before,
-- updated_..., finished_... (inclusive after, exclusive before); few, up to how many rows count as few.
-- Returns two texts of SQL. `candidates` selects rows by one index, in descending order of ids below $2; `filters` is
-- the condition on such a row i. In both, $1 is the object. No value becomes part of a text except the names of
-- statuses, from which the planner estimates row counts (tests/security/test_injection.py).
-- Index: instances_key, instances_parent, instances_parked (machine, step and statuses in which rows rest; for ends only
-- if there are many of them in all), instances_ended_badly, instances_lease, instances_blocked, instances_pick,
-- instances_finished with instances_kept, else the primary key backwards. An index in another order is used only if it holds
-- few rows. Locks: none.
create or replace function @schema.filter_sql(wanted jsonb, few int default 5000)
returns table (candidates text, filters text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  statuses constant @schema.durable_status[] := array(select jsonb_array_elements_text(wanted -> 'status'));
  -- Rows that rest in a step of a machine.
  is_parked constant boolean := wanted ?& array['machine', 'step'] and statuses <> '{}'
    and statuses <@ '{awaiting_signal,awaiting_children,failed,cancelled}';
  has_finished_range constant boolean := wanted ?| array['finished_after', 'finished_before'];
  matches int;
  parts text[] := '{true}';
begin
  perform @schema.require_max_elements(cardinality(statuses), 100);
  if wanted ? 'error' and not @schema.may_read_column('last_error') then
    raise exception 'this login may not read errors' using errcode = '42501';
  end if;
  if wanted ? 'unique_key' then
    candidates := $text$
      select i.* from @schema.instances i
      where i.unique_key = decode($1 ->> 'unique_key', 'hex') and i.id < $2 order by i.id desc $text$;
  elsif wanted ? 'parent' then
    -- Later rounds have higher ids, so this is also the order of ids.
    candidates := $text$
      select i.* from @schema.instances i
      where i.parent_id = ($1 ->> 'parent')::bigint and (i.parent_round, i.id) < (
        coalesce((select child.parent_round from @schema.instances child where child.id = $2), 2147483647), $2
      ) and i.id < $2
      order by i.parent_round desc, i.id desc $text$;
  elsif is_parked and (
    not statuses <@ '{failed,cancelled}' or few < (
      select count(*) from (select from @schema.instances i where i.status in ('failed', 'cancelled') limit few + 1) as ends
    )
  ) then
    candidates := $text$
      select i.* from @schema.instances i
      where i.fsm = $1 ->> 'machine' and i.parked_step = $1 ->> 'step' and i.id < $2
      order by i.fsm desc, i.parked_step desc, i.id desc $text$;
  elsif statuses <> '{}' and statuses <@ '{failed,cancelled}' then
    candidates := $text$
      select i.* from @schema.instances i
      where i.status in ('failed', 'cancelled') and i.id < $2 order by i.id desc $text$;
  elsif statuses = '{executing}' then
    select count(*) into matches from (
      select from @schema.instances i where i.status = 'executing' limit few + 1
    ) as few_rows;
    if matches <= few then
      candidates := $text$
        select i.* from (select running.* from @schema.instances running where running.status = 'executing' offset 0) as i
        where i.id < $2 order by i.id desc $text$;
    end if;
  elsif wanted -> 'blocked' = 'true' then
    select count(*) into matches from (
      select from @schema.instances i where i.blocked_on is not null limit few + 1
    ) as few_rows;
    if matches <= few then
      candidates := $text$
        select i.* from (select waiting.* from @schema.instances waiting where waiting.blocked_on is not null offset 0) as i
        where i.id < $2 order by i.id desc $text$;
    end if;
  elsif wanted -> 'due' = 'true' then
    -- All rows of the index, not only those that are due: millions may be scheduled for later.
    select count(*) into matches from (
      select from @schema.instances i where i.due_at is not null limit few + 1
    ) as few_rows;
    if matches <= few then
      candidates := $text$
        select i.* from (select due.* from @schema.instances due where due.due_at is not null offset 0) as i
        where i.id < $2 order by i.id desc $text$;
    end if;
  elsif has_finished_range then
    select count(*) into matches from (
      select from @schema.instances i
      where i.finished_at >= coalesce((wanted ->> 'finished_after')::timestamptz, '-infinity')
        and i.finished_at < coalesce((wanted ->> 'finished_before')::timestamptz, 'infinity') and i.keep_seconds is null
      union all
      select from @schema.instances i
      where i.finished_at >= coalesce((wanted ->> 'finished_after')::timestamptz, '-infinity')
        and i.finished_at < coalesce((wanted ->> 'finished_before')::timestamptz, 'infinity')
        and i.keep_seconds is not null
      limit few + 1
    ) as few_rows;
    if matches <= few then
      candidates := $text$
        select i.* from (
          select ended.* from @schema.instances ended
          where ended.finished_at >= coalesce((select ($1 ->> 'finished_after')::timestamptz), '-infinity')
            and ended.finished_at < coalesce((select ($1 ->> 'finished_before')::timestamptz), 'infinity')
            and ended.keep_seconds is null
          union all
          select kept.* from @schema.instances kept
          where kept.finished_at >= coalesce((select ($1 ->> 'finished_after')::timestamptz), '-infinity')
            and kept.finished_at < coalesce((select ($1 ->> 'finished_before')::timestamptz), 'infinity')
            and kept.keep_seconds is not null
          offset 0
        ) as i
        where i.id < $2 order by i.id desc $text$;
    end if;
  end if;
  candidates := coalesce(candidates, $text$
    select i.* from @schema.instances i where i.id < $2 order by i.id desc $text$);

  parts := parts || array(
    select part.condition from (values
      ('status', format('i.status = any (%L::@schema.durable_status[])', statuses)),
      ('machine', $text$i.fsm = $1 ->> 'machine'$text$),
      ('version', $text$i.fsm_version = ($1 ->> 'version')::int$text$),
      ('step', $text$i.step = $1 ->> 'step'$text$),
      ('queue', $text$i.queue = $1 ->> 'queue'$text$),
      ('partition_key', $text$i.partition_key = $1 ->> 'partition_key'$text$),
      ('parent', $text$i.parent_id = ($1 ->> 'parent')::bigint$text$),
      ('unique_key', $text$i.unique_key = decode($1 ->> 'unique_key', 'hex')$text$),
      ('inserted_after', $text$i.inserted_at >= (select ($1 ->> 'inserted_after')::timestamptz)$text$),
      ('inserted_before', $text$i.inserted_at < (select ($1 ->> 'inserted_before')::timestamptz)$text$),
      ('updated_after', $text$i.updated_at >= (select ($1 ->> 'updated_after')::timestamptz)$text$),
      ('updated_before', $text$i.updated_at < (select ($1 ->> 'updated_before')::timestamptz)$text$),
      ('finished_after', $text$i.finished_at >= (select ($1 ->> 'finished_after')::timestamptz)$text$),
      ('finished_before', $text$i.finished_at < (select ($1 ->> 'finished_before')::timestamptz)$text$),
      ('metadata', $text$i.metadata @> ($1 -> 'metadata')$text$),
      ('due', $text$coalesce(i.due_at <= now(), false) = ($1 ->> 'due')::boolean$text$),
      ('blocked', $text$(i.blocked_on is not null) = ($1 ->> 'blocked')::boolean$text$),
      ('error', $text$position(lower($1 ->> 'error') in lower(i.last_error)) > 0$text$)
    ) as part (name, condition)
    where wanted ? part.name
  );
  filters := array_to_string(parts, ' and ');
  return next;
end
$$;
