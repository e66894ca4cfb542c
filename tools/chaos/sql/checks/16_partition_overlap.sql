-- One instance of a partition key runs at a time (executions that were committed).
select o.id, format('it ran while another of key %s did, for %s ms', o.partition_key, (o.latest - o.began) / 1000000) as problem
from (
  select e.id, x.partition_key, e.began,
    max(e.ended) over (partition by x.partition_key order by e.began rows between unbounded preceding and 1 preceding) as latest
  from chaos.effects e
  join chaos.expected x on x.id = e.id and x.partition_key is not null
  join chaos.ledger l on l.id = e.id and l.claims = e.claims and l.seq = e.seq + 1
) as o
where o.began < o.latest
