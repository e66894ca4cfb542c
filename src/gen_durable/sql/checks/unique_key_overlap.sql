-- Two instances hold one unique key, or unique_guard does not follow from key, scope and status.
select min(i.id) as id, format('%s instances hold one unique key', count(*)) as problem
from @schema.instances i where i.unique_guard is not null
group by i.unique_guard having count(*) > 1
union all
select i.id, 'unique_guard is set outside of its scope'
from @schema.instances i
where i.unique_guard is not null and (i.unique_guard <> i.unique_key or i.status <> all (i.unique_scope))
