-- More instances of a concurrency limit are executing than it has slots, and began so after it was changed last.
select min(g.id) as id, format('limit %s has %s slots and is executing %s times', g.slot_key, l.slots, count(*)) as problem
from @schema.gen_durable g
join @schema.gen_durable_limits l on l.name = split_part(g.slot_key, '/', 1) and l.kind = 'concurrency'
where g.status = 'executing' and g.slot_key is not null and g.updated_at > l.updated_at
group by g.slot_key, l.slots having count(*) > l.slots
