-- The rows that transactional steps write are there exactly once per outcome.
select coalesce(b.id, l.id) as id, format('number %s: %s rows, %s outcomes', coalesce(b.seq, l.seq), coalesce(b.rows, 0), coalesce(l.outcomes, 0)) as problem
from (select id, seq + 1 as seq, count(*) as rows from chaos.book group by id, seq) as b
full join (
  select id, seq, count(*) as outcomes from chaos.ledger where step = 'Book.write' and not replayed group by id, seq
) as l on l.id = b.id and l.seq = b.seq
where coalesce(b.rows, 0) <> 1 or coalesce(l.outcomes, 0) <> 1
