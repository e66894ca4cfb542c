-- unblock: gates may have become free; let the next rows of each back into the pick index.
--
-- In: gates; whether to wait for each (else those that another session is dealing with are left out, and limits whose
-- policy is being changed: set_limit tells their rows itself, by the new policy); whether to be
-- cautious (sweep: unblock_slots.sql); places of rows that the asker is about
-- to claim. Out: the queues of the rows let back.
-- Whoever takes a row out of executing calls this in the same transaction, as its last locks: nobody who holds a gate's
-- lock waits for a row, so waiting here cannot deadlock. Therefore a head that a delivery has locked just now is left to
-- sweep. A row that a pick blocked in between is seen, for the pick had the lock, and this asks after it
-- (tests/interleavings: block_release).
-- Locks: gates in the order of their numbers.
create or replace function @schema.unblock(
  gates text[], wait boolean, cautious boolean default false, claimed tid[] default '{}'
)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
as $$
declare
  locked text[] := gates;
  keys text[];
  limits text[];
  woken text[];
begin
  if wait then
    perform pg_advisory_xact_lock(k.number)
    from (
      select distinct @schema.gate_lock_id(k.gate) as number from unnest(gates) as k (gate) order by 1
    ) as k;
  else
    locked := array(
      select k.gate from unnest(gates) as k (gate)
      where (
          starts_with(k.gate, 'partition/')
          or pg_try_advisory_xact_lock_shared(hashtext('@schema'), @schema.policy_lock_id(@schema.gate_key(k.gate)))
        )
        and pg_try_advisory_xact_lock(@schema.gate_lock_id(k.gate))
    );
  end if;

  select
    array_agg(@schema.gate_key(k.gate)) filter (where starts_with(k.gate, 'partition/')),
    array_agg(k.gate) filter (where not starts_with(k.gate, 'partition/'))
  into keys, limits
  from unnest(locked) as k (gate);

  if keys is not null then
    woken := @schema.unblock_partitions(keys);
  end if;
  if limits is not null then
    woken := woken || @schema.unblock_slots(limits, cautious) || @schema.unblock_rate(limits, claimed);
  end if;
  return woken;
end
$$;
