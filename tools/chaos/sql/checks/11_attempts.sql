-- No attempt is counted without a lost lease (or an error of the step).
select t.id, format('%s began with attempt %s after %s lost leases and %s errors', t.step, t.attempt, t.leases, t.errors) as problem
from (
  select e.id, e.step, e.attempt,
    (select count(*) from chaos.lost o where o.id = e.id and o.claims < e.claims and o.how = 'reaped') as leases,
    (select count(*) from chaos.ledger l where l.id = e.id and l.seq <= e.seq and l.replayed) as errors
  from chaos.effects e where e.attempt > 0
) as t
where t.attempt > t.leases + t.errors
