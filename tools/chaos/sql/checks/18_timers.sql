-- No delay and no timeout ends early, by the clock of the database.
select t.id, format('%s after %s s', t.what, t.waited) as problem
from (
  select i.id, l.seq, case l.seq when 2 then 'delayed by ' || (i.state ->> 'delay') else 'gave up, timeout ' || (i.state ->> 'timeout') end as what,
    extract(epoch from l.began - b.began) as waited,
    case l.seq when 2 then (i.state ->> 'delay')::float8 else (i.state ->> 'timeout')::float8 end as least
  from gen_durable.instances i
  join chaos.ledger l on l.id = i.id and l.seq in (2, 3)
  join chaos.ledger b on b.id = i.id and b.seq = l.seq - 1
  where i.fsm = 'Timer'
) as t
where t.waited < t.least - 0.000002
