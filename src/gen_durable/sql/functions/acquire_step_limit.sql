-- acquire_step_limit: request a limit from inside a step (`ctx.limit`).
--
-- Parameters: the claim (instance and epoch); the limit's name and partition, and how many tokens to take; `ticket`: a
-- random number that identifies the request, the same each time it is repeated.
-- Returns:
--   is_granted    the step may continue, after `wait_seconds`
--   wait_seconds  if granted: until the token arrives; else: until the request should be repeated, null if unknown
--   has_ticket    the ticket is stored, so the step must release it (release_step_limit.sql)
--   is_lost       the claim is no longer the caller's
-- Raises GD002 and GD003, as keys_of_limits.sql.
-- Concurrency: a ticket is a place in line. It has a slot if the executing rows and the tickets before it leave one.
-- Blocked rows come after all tickets, since the steps that hold tickets run already.
-- Rate: a token that arrives within a second is taken at once, and the step sleeps until then.
-- Locks: the gate. The policy is read under it, as set_limit changes a policy under the locks of all gates.
-- Guarded by tests/store/test_acquire_limit.py, tests/interleavings/test_limits.py (test_enter_enter, test_enter_pick).
create or replace function @schema.acquire_step_limit(
  instance bigint, epoch bigint, name text, part text, weight int, ticket bigint,
  out is_granted boolean, out wait_seconds float8, out has_ticket boolean, out is_lost boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  key constant text := name || coalesce('/' || part, '');
  locked_kind text;
  policy record;
  place bigint;  -- in line
  moment timestamptz;
  deficit_seconds float8;  -- until the bucket holds enough tokens; negative if it holds more
begin
  perform @schema.keys_of_limits(array[jsonb_build_array(jsonb_build_array(name, part, weight))]);
  loop  -- until the policy was read under the lock of its gate; it may be replaced by one of the other kind meanwhile
    select stored.kind, stored.slots, stored.period, stored.burst into policy
    from @schema.limits stored where stored.name = name;
    exit when policy.kind is null or policy.kind = locked_kind;
    locked_kind := policy.kind;
    perform from @schema.gate_locks lock
    where lock.id = @schema.gate_row_id(
      @schema.gate_name(case locked_kind when 'rate' then 'rate' else 'slot' end, key)
    )
    for no key update;
  end loop;
  is_lost := not exists (
    select from @schema.instances i
    where i.id = instance and i.claims = epoch and i.lease_expires_at is not null
  );
  is_granted := false;
  has_ticket := false;
  if is_lost or policy.kind is null then
    is_granted := not is_lost;  -- the limit was removed after keys_of_limits had read it
    return;
  end if;

  if policy.kind = 'concurrency' then
    has_ticket := true;
    select slot.id into place from @schema.step_slots slot where slot.ticket = ticket;
    if place is null then
      insert into @schema.step_slots (ticket, slot_key, instance_id, claim) values (ticket, key, instance, epoch)
      returning id into place;
    end if;
    is_granted := policy.slots >= @schema.count_taken_slots(key, policy.slots) - (
      select count(*) from @schema.step_slots slot
      join @schema.instances i on i.id = slot.instance_id and i.claims = slot.claim and i.lease_expires_at is not null
      where slot.slot_key = key and slot.id > place
    );
    return;
  end if;

  moment := clock_timestamp();
  select greatest(extract(epoch from bucket.drained_until - moment)::float8, 0) into deficit_seconds
  from @schema.rate_buckets bucket where bucket.key = key;
  deficit_seconds := coalesce(deficit_seconds, 0) + (weight - policy.burst) * policy.period;
  wait_seconds := greatest(deficit_seconds, 0);
  is_granted := wait_seconds <= 1;
  if is_granted then
    insert into @schema.rate_buckets as bucket (key, drained_until)
    values (key, moment + make_interval(secs => weight * policy.period))
    on conflict on constraint rate_buckets_pkey do update set
      drained_until = greatest(bucket.drained_until, moment) + (excluded.drained_until - moment);
  else
    wait_seconds := least(wait_seconds - 0.5, 30);
  end if;
end
$$;
