-- payloads_page: payloads of one table, in the order of its primary key, for `gen-durable reencrypt`.
--
-- Parameters: source, the table; after, the key of the last row of the page before, null for the first page; batch, how
-- many rows; instances: only those of these instances, null for all.
-- Returns one row per row of the table: its key; its instance, and whether that is executing; the columns with payloads,
-- the field that each is encrypted for (encryption.py), and their values as text.
-- Index: primary keys. Locks: none.
-- Guarded by tests/security/test_reencrypt.py.
create or replace function @schema.payloads_page(source text, after text[], batch int, instances bigint[])
returns table (key text[], instance bigint, is_executing boolean, columns text[], fields text[], payloads text[])
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
  perform @schema.require_max_elements(greatest(cardinality(after), cardinality(instances)), 100000);
  case source
    when 'instances' then
      return query
        select array[i.id::text], i.id, i.status = 'executing',
          array['state', 'result', 'last_error', 'last_traceback'],
          array[concat_ws('/', 'state', i.fsm, i.fsm_version, i.step), 'result', 'error', 'traceback'],
          array[i.state::text, i.result::text, i.last_error, i.last_traceback]
        from @schema.instances i
        where i.id > coalesce(after[1]::bigint, 0) and (instances is null or i.id = any (instances))
        order by i.id limit batch;
    when 'signals' then
      return query
        select array[s.id::text], s.target_id, i.status = 'executing',
          array['payload'], array['signal/' || s.name], array[nullif(s.payload::text, 'null')]
        from @schema.signals s
        join @schema.instances i on i.id = s.target_id
        where s.id > coalesce(after[1]::bigint, 0) and (instances is null or s.target_id = any (instances))
        order by s.id limit batch;
    when 'transitions' then
      return query
        select array[made.instance_id::text, made.seq::text, made.n::text], made.instance_id, i.status = 'executing',
          array['state', 'error', 'traceback'],
          array[
            concat_ws('/', 'state', i.fsm, i.fsm_version, coalesce(made.next_step, made.step)), 'error', 'traceback'
          ],
          array[made.state::text, made.error, made.traceback]
        from @schema.transitions made
        join @schema.instances i on i.id = made.instance_id
        where (made.instance_id, made.seq, made.n)
            > (coalesce(after[1]::bigint, 0), coalesce(after[2]::bigint, 0), coalesce(after[3]::bigint, 0))
          and (instances is null or made.instance_id = any (instances))
        order by made.instance_id, made.seq, made.n limit batch;
    when 'checkpoints' then
      return query
        select array[saved.instance_id::text], saved.instance_id, i.status = 'executing',
          array['value'], array['checkpoint'], array[saved.value::text]
        from @schema.checkpoints saved
        join @schema.instances i on i.id = saved.instance_id
        where saved.instance_id > coalesce(after[1]::bigint, 0)
          and (instances is null or saved.instance_id = any (instances))
        order by saved.instance_id limit batch;
    when 'activities' then
      return query
        select array[called.instance_id::text, called.visit::text, called.n::text], called.instance_id,
          i.status = 'executing',
          array['parameters', 'result', 'error'],
          array[
            concat_ws('/', 'activity', called.visit, called.name, 'parameters'),
            concat_ws('/', 'activity', called.visit, called.name, 'result'),
            concat_ws('/', 'activity', called.visit, called.name, 'error')
          ],
          array[called.parameters::text, called.result::text, called.error]
        from @schema.activities called
        join @schema.instances i on i.id = called.instance_id
        where (called.instance_id, called.visit, called.n)
            > (coalesce(after[1]::bigint, 0), coalesce(after[2]::bigint, 0), coalesce(after[3]::int, 0))
          and (instances is null or called.instance_id = any (instances))
        order by called.instance_id, called.visit, called.n limit batch;
    when 'progress' then
      return query
        select array[report.instance_id::text, report.step, report.branch], report.instance_id, i.status = 'executing',
          array['message', 'detail'], array['progress/message', 'progress/detail'],
          array[report.message, report.detail::text]
        from @schema.progress report
        join @schema.instances i on i.id = report.instance_id
        where (report.instance_id, report.step, report.branch)
            > (coalesce(after[1]::bigint, 0), coalesce(after[2], ''), coalesce(after[3], ''))
          and (instances is null or report.instance_id = any (instances))
        order by report.instance_id, report.step, report.branch limit batch;
    else
      raise exception 'no payload is in table %', source using errcode = '22023';
  end case;
end
$$;

comment on function @schema.payloads_page(text, text[], int, bigint[]) is
  'Returns a page of payloads of one table, for gen-durable reencrypt.';
