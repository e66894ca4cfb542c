-- No delay and no timeout ends early, by the clock of the database.
select t.id, format('%s after %s s', t.what, t.waited) as problem
from (
  select g.id, l.seq, case l.seq when 2 then 'delayed by ' || (g.state ->> 'delay') else 'gave up, timeout ' || (g.state ->> 'timeout') end as what,
    extract(epoch from l.began - b.began) as waited,
    case l.seq when 2 then (g.state ->> 'delay')::float8 else (g.state ->> 'timeout')::float8 end as least
  from gen_durable.gen_durable g
  join chaos.ledger l on l.id = g.id and l.seq in (2, 3)
  join chaos.ledger b on b.id = g.id and b.seq = l.seq - 1
  where g.fsm = 'Timer'
) as t
where t.waited < t.least - 0.000002
