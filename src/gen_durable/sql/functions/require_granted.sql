-- require_granted: raise 42501 unless the grants of a login allow it to insert the given instances.
--
-- Parameters: the oid of the login; arrays of insert: machines, queues, priorities (null means 0) and
-- partition keys.
-- A login without grants may insert everything. Several grants are alternatives. A priority with a lower number is more
-- urgent, so a grant names the lowest number. The error has the name of our table, by which the client knows that the
-- message quotes names only (pg/sqlstate_errors.py).
-- Children and spawned instances do not come here: workers insert them (insert_instances_of_outcomes.sql).
-- Index: grants_login_machine_queue_key. Locks: none. Guarded by tests/security/test_grants.py.
create or replace function @schema.require_granted(
  login oid, fsms text[], queues text[], priorities smallint[], partition_keys text[]
)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
declare
  refused record;
begin
  if not exists (select from @schema.grants given where given.login = require_granted.login) then
    return;
  end if;
  select wanted.fsm, wanted.queue, wanted.priority, wanted.partition_key into refused
  from (
    select distinct start.fsm, start.queue, coalesce(start.priority, 0::smallint) as priority, start.partition_key
    from (
      select unnest(fsms) as fsm, unnest(queues) as queue, unnest(priorities) as priority,
        unnest(partition_keys) as partition_key
    ) as start
  ) as wanted
  where not exists (
    select from @schema.grants given
    where given.login = require_granted.login
      and (given.machine is null or given.machine = wanted.fsm)
      and (given.queue is null or given.queue = wanted.queue)
      and (given.most_urgent is null or given.most_urgent <= wanted.priority)
      and (
        given.partition_prefix is null or wanted.partition_key is null
        or starts_with(wanted.partition_key, given.partition_prefix)
      )
  )
  order by wanted.fsm, wanted.queue, wanted.priority, wanted.partition_key
  limit 1;
  if found then
    raise exception 'login % may not insert machine % into queue % with priority %',
      session_user, refused.fsm, refused.queue,
      concat(refused.priority, ' and partition key ' || quote_literal(left(refused.partition_key, 80)))
      using errcode = '42501', schema = replace('@schema', '"', ''), table = 'grants',
        hint = 'gen-durable grants lists what it may insert, gen-durable grant adds to it';
  end if;
end
$$;
