-- A step that kills its worker each time ends failed, by its crashes.
select e.id, format('a poison ended as %s (%s)', i.status, i.last_error) as problem
from chaos.expected e join gen_durable.instances i on i.id = e.id
where e.kind = 'Poison' and e.result is null and (i.status <> 'failed' or i.last_error not like '%crash%')
