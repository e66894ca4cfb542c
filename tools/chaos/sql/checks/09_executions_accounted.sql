-- Each execution without an outcome belongs to a claim that was taken back.
select e.id, format('%s ran under claim %s as number %s on %s; nothing came of it, and the claim was not taken back', e.step, e.claims, e.seq, e.worker) as problem
from chaos.effects e
where not exists (select from chaos.ledger l where l.id = e.id and l.claims = e.claims and l.seq = e.seq + 1)
  and not exists (select from chaos.lost o where o.id = e.id and o.claims = e.claims)
