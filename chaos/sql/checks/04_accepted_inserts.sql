-- Each accepted insert is there, once, by the id that was answered.
select e.id, format('%s: %s rows', e.key, count(g.id)) as problem
from chaos.expected e left join gen_durable.gen_durable g on g.unique_key = convert_to(e.key, 'UTF8') and g.id = e.id
group by e.key, e.id having count(g.id) <> 1
union all
select min(g.id), format('%s rows of %s', count(*), convert_from(g.unique_key, 'UTF8'))
from gen_durable.gen_durable g where g.unique_key is not null group by g.unique_key having count(*) > 1
