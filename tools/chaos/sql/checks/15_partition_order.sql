-- Instances of a partition key end in the order in which they were inserted.
select o.id, format('%s ended before %s, which came before it in key %s', o.id, o.before, o.partition_key) as problem
from (
  select l.id, e.partition_key, lag(l.id) over (partition by e.partition_key order by l.n desc) as before
  from chaos.ledger l join chaos.expected e on e.id = l.id and e.partition_key is not null
) as o
where o.before < o.id
