-- Each instance has come as far as its outcomes in the ledger.
select coalesce(g.id, l.id) as id, format('its row says %s, the ledger %s', g.seq, l.outcomes) as problem
from gen_durable.gen_durable g
full join (select id, count(*) as outcomes from chaos.ledger group by id) as l on l.id = g.id
where g.id is null or g.seq <> coalesce(l.outcomes, 0)
