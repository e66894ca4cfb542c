-- draw_unused_ids: the next ids of the sequence, past every id that is in use.
--
-- Parameter: how many. Returns them, ascending.
-- A restore or a manual setval may have set the sequence back. Then a drawn id may exist, and the ids of deleted rows
-- would be given a second time, although idempotency keys are made of them; so the sequence is advanced past the
-- highest id. A visible id at or above the first drawn one proves that it was set back: the snapshot is older than the
-- draw. The sequence is advanced by nextval, since setval could set it back for a session that draws meanwhile, and by
-- at most ten million ids: past a single row with an absurd id it only avoids the ids that exist.
-- Index: primary keys. Locks: none.
-- Guarded by tests/store/test_allocated_ids.py.
create or replace function @schema.draw_unused_ids(count int)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
declare
  ids bigint[];
  highest bigint;
begin
  for try in 1..20 loop
    select array_agg(drawn.id) into ids
    from (
      select nextval('@schema.instances_id_seq'::regclass) as id from generate_series(1, draw_unused_ids.count)
    ) as drawn;
    select greatest(
      (select max(i.id) from @schema.instances i where i.id >= ids[1]),
      (select max(allocated.id) from @schema.allocated_ids allocated where allocated.id >= ids[1])
    ) into highest;
    if highest is null then
      return coalesce(ids, '{}');
    end if;
    if highest - ids[1] > 10000000 and not exists (select from @schema.instances i where i.id = any (ids))
      and not exists (select from @schema.allocated_ids allocated where allocated.id = any (ids))
    then
      return ids;
    end if;
    perform nextval('@schema.instances_id_seq'::regclass)
    from generate_series(1, least(highest - ids[cardinality(ids)], 10000000));
  end loop;
  raise exception 'the sequence of ids is behind the ids of instances' using errcode = 'GD008',
    hint = 'Set it past the highest id: select setval(''@schema.instances_id_seq'', (select max(id) from @schema.instances))';
end
$$;
