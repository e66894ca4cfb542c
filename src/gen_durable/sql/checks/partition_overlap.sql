-- Two instances of one partition key are executing.
select min(g.id) as id, format('partition key %s is executing %s times', g.partition_key, count(*)) as problem
from @schema.gen_durable g where g.status = 'executing' and g.partition_key is not null
group by g.partition_key having count(*) > 1
