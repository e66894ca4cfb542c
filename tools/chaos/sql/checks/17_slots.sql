-- A limit of concurrency is never exceeded (executions that were committed).
select min(t.id) as id, format('%s ran at once', t.running) as problem
from (
  select v.id, sum(v.change) over (order by v.at, v.change rows unbounded preceding) as running
  from chaos.effects e
  join chaos.ledger l on l.id = e.id and l.claims = e.claims and l.seq = e.seq + 1
  cross join lateral (values (e.id, e.began, 1), (e.id, e.ended, -1)) as v (id, at, change)
  where e.step = 'Narrow.squeeze'
) as t
where t.running > @slots group by t.running
