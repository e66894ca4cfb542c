-- Two instances hold one unique key, or a guard does not follow from key, scope and status.
select min(g.id) as id, format('%s instances hold one unique key', count(*)) as problem
from @schema.gen_durable g where g.unique_guard is not null
group by g.unique_guard having count(*) > 1
union all
select g.id, 'unique_guard is set outside of its scope'
from @schema.gen_durable g
where g.unique_guard is not null and (g.unique_guard <> g.unique_key or g.status <> all (g.unique_scope))
