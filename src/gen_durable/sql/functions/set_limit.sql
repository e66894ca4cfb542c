-- set_limit: create or change the policy of a limit.
--
-- Parameters: the policy (`slots` of a concurrency limit; `period`, seconds per token, and `burst` of a rate limit);
-- `declared`: the policy as a worker's code declares it, or null if an operator sets it. A declaration that equals the
-- stored one changes nothing, so a later change by an operator stays. notify: wake the workers of unblocked rows with
-- the commit (notify_workers.sql).
-- Returns whether the policy changed; the queues of the unblocked rows.
-- Raises GD005 if the limit exists with the other kind.
-- After the commit no session admits rows by the old policy (reblock_rows_and_lock_limit_gates.sql). Executing rows
-- continue. Waiting rows are unblocked, or get a new token_at, by the new policy (reapply_limit.sql).
-- Locks: the policy, by one of 64 rows of gate_locks, against other changes of it; then as
-- reblock_rows_and_lock_limit_gates. Buckets are written under the locks of the gates only, here as everywhere.
-- Guarded by tests/interleavings/test_limits.py (test_policy_pick_fewer_slots, ...), tests/store/test_limits.py.
create or replace function @schema.set_limit(
  name text, kind text, slots int, period float8, burst int, declared jsonb, notify boolean default true,
  out changed boolean, out woken_queues text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  old record;
begin
  perform from @schema.gate_locks lock where lock.id = -1 - (hashtext(name) & 63) for no key update;
  select * into old from @schema.limits stored where stored.name = name;
  changed := old.name is null
    or (old.kind, old.slots, old.period, old.burst) is distinct from (kind, slots, period, burst);
  if declared is not null and old.declared = declared then
    changed := false;
    return;
  end if;
  if old.kind <> kind then
    raise exception 'limit % is a % limit: remove it before making it a % limit', name, old.kind, kind
      using errcode = 'GD005';
  end if;
  if changed then
    -- Before updated_at, after which no row is claimed by the old policy.
    perform @schema.reblock_rows_and_lock_limit_gates(name);
  end if;
  insert into @schema.limits as stored (name, kind, slots, period, burst, declared)
  values (name, kind, slots, period, burst, declared)
  on conflict on constraint limits_pkey do update set
    slots = excluded.slots, period = excluded.period, burst = excluded.burst,
    declared = coalesce(excluded.declared, stored.declared), updated_at = clock_timestamp();
  if (old.period, old.burst) <> (period, burst) then
    -- Tokens that were taken stay taken, but return at the new pace; a bucket lacks at most `burst` tokens.
    update @schema.rate_buckets bucket set
      drained_until = now() + make_interval(secs => least(
        extract(epoch from bucket.drained_until - now())::float8 * (period / old.period), burst * period
      ))
    where bucket.drained_until > now()
      and (bucket.key = name or (bucket.key > name || '/' and bucket.key < name || '0'));
  end if;
  if changed then
    woken_queues := @schema.reapply_limit(name);
  end if;
  if notify then
    perform @schema.notify_workers('queue', woken_queues);
  end if;
end
$$;

comment on function @schema.set_limit(text, text, int, float8, int, jsonb, boolean) is
  'Creates a limit or changes its policy. Returns whether it changed, and the queues of unblocked rows, whose '
  'workers your commit wakes, unless you pass notify => false.';
