-- No claim runs a step twice, except a transactional one whose transaction was lost.
select e.id, format('%s ran %s times under claim %s', e.step, count(*), e.claims) as problem
from chaos.effects e where e.step <> 'Book.write'
group by e.id, e.claims, e.seq, e.step having count(*) > 1
