-- acquire_limit: a step asks for a limit from inside.
--
-- In: the claim that asks; the limit's name and partition, and how many tokens; a ticket that it has drawn, the same when it
-- asks again. Out: whether it may go on, after how many seconds (0: now), or else after how many seconds to ask again;
-- whether the ticket is to be given back (leave); `lost`: the claim is not the asker's any more.
-- Concurrency: a ticket is a place in the line. It has a slot when those before it and the executing rows leave one. Rows
-- that wait come after those who hold tickets: their steps run already.
-- Rate: a token that comes within a second is reserved, and the asker sleeps until then.
-- Refused: GD002 and GD003, as in limit_keys.sql.
-- Locks: the policy (shared), then the gate.
create or replace function @schema.acquire_limit(
  instance bigint, claim int, name text, part text, weight int, ticket bigint,
  out may boolean, out seconds float8, out held boolean, out lost boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  key constant text := name || coalesce('/' || part, '');
  policy record;
  place bigint;  -- in the line
  moment timestamptz;
  short float8;  -- seconds until there are enough tokens
begin
  perform @schema.limit_keys(array[jsonb_build_array(jsonb_build_array(name, part, weight))]);
  perform pg_advisory_xact_lock_shared(hashtext('@schema'), @schema.policy_lock_id(name));
  select l.kind, l.slots, l.period, l.burst into policy from @schema.limits l where l.name = name;
  lost := not exists (
    select from @schema.instances i
    where i.id = instance and i.claims = claim and i.lease_expires_at is not null
  );
  may := false;
  held := false;
  if lost or policy.kind is null then
    may := not lost;  -- the limit was removed just now
    return;
  end if;
  perform pg_advisory_xact_lock(
    @schema.gate_lock_id(@schema.gate(case policy.kind when 'rate' then 'rate' else 'slot' end, key))
  );

  if policy.kind = 'concurrency' then
    held := true;
    select s.id into place from @schema.step_slots s where s.ticket = ticket;
    if place is null then
      insert into @schema.step_slots (ticket, slot_key, instance_id, claim) values (ticket, key, instance, claim)
      returning id into place;
    end if;
    may := policy.slots >= @schema.slots_taken(key, policy.slots) - (
      select count(*) from @schema.step_slots s
      join @schema.instances i on i.id = s.instance_id and i.claims = s.claim and i.lease_expires_at is not null
      where s.slot_key = key and s.id > place
    );
    return;
  end if;

  moment := clock_timestamp();
  select greatest(extract(epoch from b.drained_until - moment)::float8, 0) into short
  from @schema.rate_buckets b where b.key = key;
  short := coalesce(short, 0) + (weight - policy.burst) * policy.period;
  seconds := greatest(short, 0);
  may := seconds <= 1;
  if may then
    insert into @schema.rate_buckets as b (key, drained_until)
    values (key, moment + make_interval(secs => weight * policy.period))
    on conflict on constraint rate_buckets_pkey do update set
      drained_until = greatest(b.drained_until, moment) + (excluded.drained_until - moment);
  else
    seconds := least(seconds - 0.5, 30);
  end if;
end
$$;

-- leave: give back a ticket of enter. Returns the queues of rows let back.
create or replace function @schema.release_limit(ticket bigint)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  key text;
begin
  delete from @schema.step_slots s where s.ticket = release_limit.ticket returning s.slot_key into key;
  return case when key is not null then @schema.unblock(array[@schema.gate('slot', key)], true) end;
end
$$;
