-- More instances of a concurrency limit are executing than it has slots, and began so after it was changed last.
select min(i.id) as id, format('limit %s has %s slots and is executing %s times', i.slot_key, l.slots, count(*)) as problem
from @schema.instances i
join @schema.limits l on l.name = split_part(i.slot_key, '/', 1) and l.kind = 'concurrency'
where i.status = 'executing' and i.slot_key is not null and i.updated_at > l.updated_at
group by i.slot_key, l.slots having count(*) > l.slots
