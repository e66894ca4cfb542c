-- Each instance's outcomes are numbered 1 to n, without gap and without double.
select l.id, format('%s outcomes, %s of them different, from %s to %s', count(*), count(distinct l.seq), min(l.seq), max(l.seq)) as problem
from chaos.ledger l group by l.id
having count(*) <> max(l.seq) or count(distinct l.seq) <> count(*) or min(l.seq) <> 1
