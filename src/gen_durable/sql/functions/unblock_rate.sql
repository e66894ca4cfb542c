-- unblock_rate: the part of unblock for rate limits whose gates are locked: the first rows that wait are told when
-- their tokens will be there, and come back into the pick index for that moment.
--
-- Told are those whose moment is within the horizon, and one at least. They have nothing in their hands but the moment: a
-- token is taken by the claim, so more urgent work that comes first takes it first, and who comes too late asks again. A
-- row that nobody has picked 5 s after its moment keeps nobody else from being told.
-- Each queue by itself, as in unblock_slots. A gate without a policy holds nobody.
-- Index: instances_limited, instances_token_due; primary keys of limits and buckets.
create or replace function @schema.unblock_rate(gates text[], claimed tid[])
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
  horizon constant float8 := 1;
  bulk constant int := 1000;
  moment constant timestamptz := clock_timestamp();
  woken text[];
begin
  with line as materialized (
    select w.gate, w.queue, l.period, l.burst, t.weight as told,
      greatest(extract(epoch from b.drained_until - moment), 0)::float8 as drained
    from @schema.waiting_queues(gates) as w
    left join @schema.limits l on l.name = split_part(@schema.gate_key(w.gate), '/', 1) and l.kind = 'rate'
    left join @schema.rate_buckets b on b.key = @schema.gate_key(w.gate)
    cross join lateral (
      select coalesce(sum(least(coalesce(i.weight, 1), l.burst)), 0) as weight from @schema.instances i
      where i.rate_key = @schema.gate_key(w.gate) and i.queue = w.queue and i.token_at > moment - interval '5 seconds'
        and i.ctid <> all (claimed)
    ) as t
    where starts_with(w.gate, 'rate/')
  ),
  first as materialized (
    select n.place, l.period, l.told, n.n, l.drained
      + (l.told + sum(n.weight) over (partition by l.gate, l.queue order by n.n) - l.burst) * l.period as seconds
    from line l
    cross join lateral (
      select b.place, b.weight, row_number() over (order by b.priority, b.eligible_at, b.id) as n
      from (
        select b.ctid as place, b.priority, b.eligible_at, b.id, least(coalesce(b.weight, 1), l.burst) as weight
        from @schema.instances b
        where b.blocked_on = l.gate and not starts_with(b.blocked_on, 'partition/') and b.queue = l.queue
        order by b.priority, b.eligible_at, b.id
        limit case when l.period is null then bulk else least(bulk, 1 + l.burst + ceil(horizon / l.period)) end
        for no key update skip locked
      ) as b
    ) as n
    where l.period is null or l.told = 0 or l.told * l.period < horizon / 2
  ),
  u as (
    update @schema.instances i set
      blocked_on = null,
      token_at = case when f.period is not null then moment + make_interval(secs => greatest(f.seconds, 0)) end
    from first f
    where i.ctid = f.place and (f.period is null or f.seconds <= horizon or (f.told = 0 and f.n = 1))
    returning i.queue
  )
  select array_agg(distinct u.queue) into woken from u;
  return woken;
end
$$;
