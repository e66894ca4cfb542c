-- Each instance has come as far as its outcomes in the ledger.
select coalesce(i.id, l.id) as id, format('its row says %s, the ledger %s', i.seq, l.outcomes) as problem
from gen_durable.instances i
full join (select id, count(*) as outcomes from chaos.ledger group by id) as l on l.id = i.id
where i.id is null or i.seq <> coalesce(l.outcomes, 0)
