-- take_login_quota: count instances that a login is about to insert against its quotas, or raise GD007.
--
-- Parameters: the oid of the login; how many instances. All of a call count, also those whose unique key is taken.
-- max_live: live_left is what the last count has left. Only when it is used up are the live rows counted again; an
-- instance that ends changes nothing here, so pick and flush pay nothing.
-- inserts_per_second: a bucket that holds the inserts of one second, at least one; drained_until is when it is full.
-- The clock is read after the lock was granted: the transaction may have waited for it.
-- DETAIL is how many seconds to wait, empty if unknown. What a rolled back transaction has taken is given back with it.
-- Index: instances_live_of_login (live_index.sql).
-- Locks: the row of the login, before any unique key, until the transaction ends: with the count under the lock, no two
-- inserts take the same rest (tests/interleavings: quota_quota). A login without quotas locks nothing.
-- Guarded by tests/security/test_quotas.py.
create or replace function @schema.take_login_quota(login oid, count int)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  quota record;
  rest int;              -- of max_live
  burst float8;          -- what a full bucket holds
  moment timestamptz;
  missing_seconds float8;  -- until the bucket holds enough
begin
  select restricted.max_live, restricted.live_left, restricted.inserts_per_second, restricted.drained_until into quota
  from @schema.restricted_logins restricted
  where restricted.login = login and (restricted.max_live is not null or restricted.inserts_per_second is not null)
  for no key update;
  if not found then
    return;
  end if;

  if quota.inserts_per_second is not null then
    moment := clock_timestamp();
    burst := ceil(quota.inserts_per_second);
    if count > burst then
      raise exception 'login % may insert % instances a second, and at most % in one call, got %',
        session_user, quota.inserts_per_second, burst, count
        using errcode = 'GD007', detail = '', hint = 'Insert them in several calls, or raise the quota with gen-durable grant';
    end if;
    missing_seconds := greatest(extract(epoch from quota.drained_until - moment)::float8, 0)
      + (count - burst) / quota.inserts_per_second;
    if missing_seconds > 0 then
      raise exception 'login % may insert % instances a second', session_user, quota.inserts_per_second
        using errcode = 'GD007', detail = missing_seconds::text,
          hint = format('Try again in %s seconds, or raise the quota with gen-durable grant', round(missing_seconds::numeric, 3));
    end if;
    quota.drained_until := greatest(quota.drained_until, moment)
      + make_interval(secs => count / quota.inserts_per_second);
  end if;

  if quota.max_live is not null then
    rest := quota.live_left;
    if count > rest then
      rest := quota.max_live - (
        select count(*) from (
          select from @schema.instances i where i.inserted_by = login and i.finished_at is null limit quota.max_live
        ) as live
      );
    end if;
    if count > rest then
      raise exception 'login % may have % live instances and has % left, got %', session_user, quota.max_live, rest, count
        using errcode = 'GD007', detail = '',
          hint = 'Try again when some have ended, or raise the quota with gen-durable grant';
    end if;
    quota.live_left := rest - count;
  end if;
  update @schema.restricted_logins restricted
  set live_left = quota.live_left, drained_until = quota.drained_until
  where restricted.login = login;
end
$$;
