-- limit_keys: the limits that rows ask for by name, as the keys that the rows keep.
--
-- In: per row null, or [[name, partition or null, weight], ...]. Out: arrays of the same length.
-- Refused: GD002 a name that no limit has; GD003 more weight than a limit can ever give; GD004 two limits of one kind.
-- Index: the primary key of limits.
create or replace function @schema.limit_keys(
  wants jsonb[], out slot_keys text[], out rate_keys text[], out weights int[]
)
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
  unknown text;
  twice text;
  heavy record;
begin
  select string_agg(distinct w.name, ', '), max(w.twice) into unknown, twice
  from (
    select case when l.name is null then e.want ->> 0 end as name,
           case when count(*) over (partition by o.n, l.kind) > 1 then l.kind end as twice
    from unnest(wants) with ordinality as o (wants, n)
    cross join lateral jsonb_array_elements(o.wants) as e (want)
    left join @schema.limits l on l.name = e.want ->> 0
  ) as w;
  if unknown is not null then
    raise exception 'no limit is called %', unknown using errcode = 'GD002';
  end if;
  if twice is not null then
    raise exception 'a step can have one limit of the kind %, not two', twice using errcode = 'GD004';
  end if;

  select l.name, l.kind, l.burst, (e.want ->> 2)::int as weight into heavy
  from unnest(wants) as o (wants)
  cross join lateral jsonb_array_elements(o.wants) as e (want)
  join @schema.limits l on l.name = e.want ->> 0
  where (e.want ->> 2)::int > coalesce(l.burst, 1)
  limit 1;
  if found then
    raise exception using errcode = 'GD003', message = case heavy.kind
      when 'rate' then format('a weight of %s is above the burst of limit %s, which is %s', heavy.weight, heavy.name, heavy.burst)
      else format('limit %s is one of concurrency and knows no weight', heavy.name)
    end;
  end if;

  select
    array_agg(k.slot_key order by k.n), array_agg(k.rate_key order by k.n), array_agg(k.weight order by k.n)
  into slot_keys, rate_keys, weights
  from (
    select o.n,
      max(w.key) filter (where w.kind = 'concurrency') as slot_key,
      max(w.key) filter (where w.kind = 'rate') as rate_key,
      max(w.weight) filter (where w.kind = 'rate' and w.weight > 1) as weight
    from unnest(wants) with ordinality as o (wants, n)
    left join lateral (
      select l.kind, (e.want ->> 0) || coalesce('/' || (e.want ->> 1), '') as key, (e.want ->> 2)::int as weight
      from jsonb_array_elements(o.wants) as e (want)
      join @schema.limits l on l.name = e.want ->> 0
    ) as w on true
    group by o.n
  ) as k;
end
$$;
