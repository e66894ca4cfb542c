-- No step began before the outcome that leads to it was written.
select e.id, format('%s began as number %s, which is not in the ledger', e.step, e.seq) as problem
from chaos.effects e left join chaos.ledger l on l.id = e.id and l.seq = e.seq
where e.seq > 0 and l.id is null
union all
select e.id, format('%s began %s ms before outcome %s', e.step, round((extract(epoch from l.at) * 1000 - (e.began + @offset) / 1e6)), e.seq)
from chaos.effects e join chaos.ledger l on l.id = e.id and l.seq = e.seq
where (e.began + @offset) / 1e9 < extract(epoch from l.at) - @slack
