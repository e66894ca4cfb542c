-- keeps_history: whether the last outcome of an instance was recorded, so that its machine keeps a history.
--
-- Parameters: columns of its row. False for a row without an outcome.
-- Index: primary key of transitions. Locks: none. Guarded by tests/store/test_history.py, test_guards.py.
create or replace function @schema.keeps_history(id bigint, seq bigint)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
  select exists (
      select from @schema.transitions recorded
      where recorded.instance_id = keeps_history.id and recorded.seq = keeps_history.seq and recorded.n = 0
    ) or exists (
      select from @schema.packed_outcomes line
      where line.instance_id = keeps_history.id and line.seq = keeps_history.seq
    )
$$;
