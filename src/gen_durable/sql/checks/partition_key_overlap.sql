-- Two instances of one partition key are executing.
select min(i.id) as id, format('partition key %s is executing %s times', i.partition_key, count(*)) as problem
from @schema.instances i where i.status = 'executing' and i.partition_key is not null
group by i.partition_key having count(*) > 1
