-- set_limit: make or change the policy of a limit.
--
-- In: the policy; `declared` if it comes from a worker's code: then it is left as it is when the code declares the same as
-- before, so that what an operator has changed since stays. Out: whether anything changed, and queues of rows let back.
-- GD005: the limit is of the other kind.
-- After this has committed nobody grants by the policy that was before. Rows that run go on. Rows that wait are let back
-- or told their moments anew, by the new policy.
-- Locks: the policy alone; the rows that were told a moment, in id order; then the gates.
create or replace function @schema.set_limit(
  name text, kind text, slots int, period float8, burst int, declared jsonb, out changed boolean, out woken text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  old record;
begin
  perform pg_advisory_xact_lock(hashtext('@schema'), @schema.policy_lock_id(name));
  select * into old from @schema.limits l where l.name = name;
  changed := old.name is null
    or (old.kind, old.slots, old.period, old.burst) is distinct from (kind, slots, period, burst);
  if declared is not null and old.declared = declared then
    changed := false;
    return;
  end if;
  if old.kind <> kind then
    raise exception 'limit % is one of %: remove it before making it one of %', name, old.kind, kind
      using errcode = 'GD005';
  end if;
  insert into @schema.limits as l (name, kind, slots, period, burst, declared)
  values (name, kind, slots, period, burst, declared)
  on conflict on constraint limits_pkey do update set
    slots = excluded.slots, period = excluded.period, burst = excluded.burst,
    declared = coalesce(excluded.declared, l.declared), updated_at = clock_timestamp();
  if (old.period, old.burst) <> (period, burst) then
    -- Tokens that are gone stay gone, but come back at the new pace, and no more of them than there can be.
    update @schema.rate_buckets b set
      drained_until = now() + make_interval(secs => least(
        extract(epoch from b.drained_until - now())::float8 * (period / old.period), burst * period
      ))
    where b.drained_until > now() and (b.key = name or (b.key > name || '/' and b.key < name || '0'));
  end if;
  if changed then
    woken := @schema.reapply_limit(name);
  end if;
end
$$;

create or replace function @schema.remove_limit(name text, out removed boolean, out woken text[])
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  perform pg_advisory_xact_lock(hashtext('@schema'), @schema.policy_lock_id(name));
  delete from @schema.limits l where l.name = name;
  removed := found;
  if removed then
    delete from @schema.rate_buckets b where b.key = name or (b.key > name || '/' and b.key < name || '0');
    woken := @schema.reapply_limit(name);
  end if;
end
$$;
