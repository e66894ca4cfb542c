-- More instances of a concurrency limit execute than it has slots, and began after its last change.
select min(i.id) as id, format('limit %s has %s slots and is executing %s times', i.slot_key, policy.slots, count(*)) as problem
from @schema.instances i
join @schema.limits policy on policy.name = split_part(i.slot_key, '/', 1) and policy.kind = 'concurrency'
where i.status = 'executing' and i.slot_key is not null and i.updated_at > policy.updated_at
group by i.slot_key, policy.slots having count(*) > policy.slots
