-- Urgent instances are not starved: half of them begin no later after they are due than half of the others.
with waits as (
  select i.fsm, extract(epoch from i.inserted_at) as inserted, (min(e.began) + @offset) / 1e9 as began,
    coalesce(x.delay, 0) as delay
  from gen_durable.instances i
  join chaos.effects e on e.id = i.id and e.seq = 0
  cross join lateral (select case i.fsm when 'Urgent' then extract(epoch from i.eligible_at - i.inserted_at) end as delay) as x
  where i.fsm in ('Urgent', 'Chain') and i.parent_id is null
  group by i.id, i.fsm, i.inserted_at, x.delay
),
middle as (
  select waits.fsm, percentile_cont(0.5) within group (order by began - inserted - greatest(delay, 0)) as seconds,
    count(*) as count
  from waits group by waits.fsm
)
select 0 as id, format('half of them wait %s s, of the others %s s', round(urgent.seconds::numeric, 3), round(other.seconds::numeric, 3)) as problem
from middle as urgent join middle as other on other.fsm = 'Chain'
where urgent.fsm = 'Urgent' and urgent.seconds > other.seconds + @slack + 20.0 / urgent.count  -- a fault delays half of a few
