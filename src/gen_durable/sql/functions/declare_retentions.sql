-- declare_retentions: store the retentions that the machines of a worker declare, so that gc of every worker keeps to them.
--
-- Parameters: one array per column. declares: whether the machine declares a retention; if not, its row is deleted. done,
-- failed, cancelled: seconds, null for ever.
-- A start that changes nothing writes nothing. Machines that are not given stay as they are: another worker has them.
-- Index: primary key. Locks: the table, against two workers that start at once, only if something changes
-- (tests/interleavings: declare_declare).
create or replace function @schema.declare_retentions(
  fsms text[], declares boolean[], done float8[], failed float8[], cancelled float8[]
)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
begin
  perform @schema.require_max_elements(greatest(
    cardinality(fsms), cardinality(declares), cardinality(done), cardinality(failed), cardinality(cancelled)
  ), 100000);
  if not exists (
    select from unnest(fsms, declares, done, failed, cancelled) as given (fsm, declares, done, failed, cancelled)
    left join @schema.retentions stored on stored.fsm = given.fsm
    where (stored.fsm is not null) <> given.declares
      or (given.declares and (stored.done, stored.failed, stored.cancelled)
            is distinct from (given.done, given.failed, given.cancelled))
  ) then
    return false;
  end if;
  lock table @schema.retentions in share row exclusive mode;
  delete from @schema.retentions stored
  using unnest(fsms, declares) as given (fsm, declares)
  where stored.fsm = given.fsm and not given.declares;
  insert into @schema.retentions as stored (fsm, done, failed, cancelled)
  select given.fsm, given.done, given.failed, given.cancelled
  from unnest(fsms, declares, done, failed, cancelled) as given (fsm, declares, done, failed, cancelled)
  where given.declares
  on conflict (fsm) do update set
    done = excluded.done, failed = excluded.failed, cancelled = excluded.cancelled, updated_at = now();
  return true;
end
$$;
