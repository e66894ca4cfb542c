-- declared_retentions: the retentions that machines declare, in seconds; null keeps for good. gc walks once for each.
--
-- Locks: none.
create or replace function @schema.declared_retentions()
returns table (fsm text, done float8, failed float8, cancelled float8)
language sql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
  select declared.fsm, declared.done, declared.failed, declared.cancelled
  from @schema.retentions declared
  order by declared.fsm
$$;
