-- reject_signals_and_release_claims: take signals out of their inbox that a worker cannot read, and put their rows back.
--
-- Parameters: one element per signal: the instance and the epoch of its claim, the signal, the reason (never a value of
-- the payload), and the fingerprint of the definition that could not read it (gen_durable/signal_decoder_fingerprints.py).
-- Returns one row: the rejected signals, and the queues in which rows became runnable.
-- A rejected signal is kept with its payload, wakes nothing, and frees its dedup key. An instance keeps its newest 10,000
-- rejected signals, and 64 MB of them. The claim ends without a crash and without an attempt. A row that awaits signals
-- waits again, until its old deadline, unless another awaited signal is there or its deadline has woken it. Any other row
-- is runnable.
-- Index: primary keys, signals_rejected, signals_inbox.
-- Locks: the rows in id order, then their gates. The inbox is looked at under the lock, in a statement of its own: a
-- delivery that committed before is seen, a later one finds the row parked (tests/interleavings: reject_deliver).
create or replace function @schema.reject_signals_and_release_claims(
  ids bigint[], claims bigint[], signal_ids bigint[], reasons text[], fingerprints text[],
  out rejected bigint[], out woken_queues text[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  held bigint[];     -- rows whose claim is still this one,
  epochs bigint[];   -- and its epoch
  parked bigint[];
begin
  perform @schema.require_max_elements(greatest(
    cardinality(ids), cardinality(claims), cardinality(signal_ids), cardinality(reasons),
    cardinality(fingerprints)
  ), 100000);
  perform from @schema.instances i where i.id = any (ids) order by i.id for no key update;
  select array_agg(claim.id order by claim.id), array_agg(claim.epoch order by claim.id) into held, epochs
  from (
    select distinct given.id, given.epoch
    from unnest(ids, reject_signals_and_release_claims.claims) as given (id, epoch)
  ) as claim
  join @schema.instances i on i.id = claim.id and i.claims = claim.epoch and i.lease_expires_at is not null;
  if held is null then
    return;
  end if;

  with marked as (
    update @schema.signals s set
      consumed = true,
      rejection = given.reason,
      rejected_by = (given.fingerprint || array_remove(coalesce(s.rejected_by, '{}'), given.fingerprint))[:32]
    from unnest(ids, signal_ids, reasons, fingerprints) as given (target, id, reason, fingerprint)
    where s.id = given.id and s.target_id = given.target and given.target = any (held) and not s.consumed
    returning s.id
  )
  select array_agg(marked.id) into rejected from marked;
  delete from @schema.signals s where s.id = any (array(
    select kept.id
    from (
      select old.id, row_number() over newest_first as place, sum(old.size) over newest_first as bytes
      from @schema.signals old where old.target_id = any (held) and old.rejection is not null
      window newest_first as (partition by old.target_id order by old.id desc)
    ) as kept
    where kept.place > 10000 or kept.bytes > 64000000
  ));

  parked := array(
    select i.id from @schema.instances i
    where i.id = any (held) and i.cancel_reason is null and i.awaits is not null and i.timed_out_claim is null
      and not exists (
        select from @schema.signals other
        where other.target_id = i.id and not other.consumed and other.name = any (i.awaits)
      )
  );
  update @schema.instances i set
    status = 'awaiting_signal',
    claims = i.claims + 1,
    seen = '{}',
    crashes = 0,
    claimed_ahead = false,
    locked_by = null,
    lease_expires_at = null,
    unique_scope = @schema.unique_scope_for_status(i.unique_scope, 'awaiting_signal'),
    updated_at = now()
  where i.id = any (parked);
  -- Releases the other rows, which keep their places and counters, and then unblocks the gates of all: parked rows are
  -- past its fence, and gates must be locked in one order.
  select released.woken_queues into woken_queues
  from @schema.release_claims(held, epochs, '{}', '{}') as released;
  woken_queues := woken_queues || array(
    select distinct i.queue from @schema.instances i where i.id = any (held) and i.status = 'runnable'
  );
end
$$;
