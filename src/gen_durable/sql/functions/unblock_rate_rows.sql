-- unblock_rate_rows: the part of unblock for rate limits: give the first blocked rows a token_at, the time at which their
-- tokens arrive, and return them to the pick index for that time.
--
-- Parameters: gates that this transaction has locked (gates of other kinds are ignored); rows that the caller is about
-- to claim, whose token_at no longer counts. Returns the queues of the unblocked rows.
-- Every row whose tokens arrive within `horizon` seconds gets a token_at, unless the rows that have one already cover
-- half of the horizon; if no row of the queue has one, the first row gets one however late it is. A token_at is a hint,
-- not a reservation: the claim takes the token, so more urgent rows that arrive first take it first, and a row that is
-- picked too late is blocked again. A row with a token_at counts as a user of tokens until 5 s after it: a row that no
-- worker picks must not keep others blocked.
-- drained_until is the time at which the bucket is full again, so the bucket lacks (drained_until - now) / period
-- tokens, with `period` the seconds per token. A row waits until that deficit, plus the tokens for the rows before it
-- and for itself, is at most `burst`.
-- Each queue by itself, as in unblock_slot_rows.sql. A limit that was removed blocks no row.
-- Index: instances_limited (blocked rows), instances_token_due; primary keys of limits and rate_buckets.
-- Locks: the rows with SKIP LOCKED.
-- Guarded by tests/store/test_limits.py (test_tokens), test_guards.py, test_no_waiting.py.
create or replace function @schema.unblock_rate_rows(gates text[], claimed_rows tid[])
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  horizon constant float8 := 1;
  bulk constant int := 1000;
  moment constant timestamptz := clock_timestamp();
  woken_queues text[];
begin
  with bucket_state as materialized (
    select waiting.gate, waiting.queue, policy.period, policy.burst, promised.weight as promised,
      greatest(extract(epoch from bucket.drained_until - moment), 0)::float8 as drained_seconds
    from @schema.queues_of_blocked_rows(gates) as waiting
    left join @schema.limits policy
      on policy.name = split_part(@schema.key_of_gate(waiting.gate), '/', 1) and policy.kind = 'rate'
    left join @schema.rate_buckets bucket on bucket.key = @schema.key_of_gate(waiting.gate)
    cross join lateral (
      select coalesce(sum(least(coalesce(i.weight, 1), policy.burst)), 0) as weight from @schema.instances i
      where i.rate_key = @schema.key_of_gate(waiting.gate) and i.queue = waiting.queue
        and i.token_at > moment - interval '5 seconds' and i.ctid <> all (claimed_rows)
    ) as promised
    where starts_with(waiting.gate, 'rate/')
  ),
  locked_row as materialized (
    select numbered.tid, bucket_state.period, bucket_state.promised, numbered.place, bucket_state.drained_seconds + (
      bucket_state.promised
      + sum(numbered.weight) over (partition by bucket_state.gate, bucket_state.queue order by numbered.place)
      - bucket_state.burst
    ) * bucket_state.period as wait_seconds
    from bucket_state
    cross join lateral (
      select first_blocked.tid, first_blocked.weight,
        row_number() over (order by first_blocked.priority, first_blocked.eligible_at, first_blocked.id) as place
      from (
        select i.ctid as tid, i.priority, i.eligible_at, i.id,
          least(coalesce(i.weight, 1), bucket_state.burst) as weight
        from @schema.instances i
        where i.blocked_on = bucket_state.gate and not starts_with(i.blocked_on, 'partition/')
          and i.queue = bucket_state.queue
        order by i.priority, i.eligible_at, i.id
        limit case
          when bucket_state.period is null then bulk
          else least(bulk, 1 + bucket_state.burst + ceil(horizon / bucket_state.period))
        end
        for no key update skip locked
      ) as first_blocked
    ) as numbered
    where bucket_state.period is null or bucket_state.promised = 0
      or bucket_state.promised * bucket_state.period < horizon / 2
  ),
  unblocked as (
    update @schema.instances i set
      blocked_on = null,
      token_at = case
        when locked_row.period is not null then moment + make_interval(secs => greatest(locked_row.wait_seconds, 0))
      end
    from locked_row
    where i.ctid = locked_row.tid and (
      locked_row.period is null or locked_row.wait_seconds <= horizon
      or (locked_row.promised = 0 and locked_row.place = 1)
    )
    returning i.queue
  )
  select array_agg(distinct unblocked.queue) into woken_queues from unblocked;
  return woken_queues;
end
$$;
