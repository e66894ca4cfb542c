-- Each accepted insert is there, once, by the id that was answered.
select e.id, format('%s: %s rows', e.key, count(i.id)) as problem
from chaos.expected e left join gen_durable.instances i on i.unique_key = convert_to(e.key, 'UTF8') and i.id = e.id
group by e.key, e.id having count(i.id) <> 1
union all
select min(i.id), format('%s rows of %s', count(*), convert_from(i.unique_key, 'UTF8'))
from gen_durable.instances i where i.unique_key is not null group by i.unique_key having count(*) > 1
