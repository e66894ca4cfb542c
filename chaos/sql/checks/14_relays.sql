-- What an end starts is started once.
select g.id, format('it started %s', count(s.id)) as problem
from gen_durable.gen_durable g left join gen_durable.gen_durable s on s.metadata ->> 'by' = g.id::text
where g.fsm = 'Relay' and g.status = 'done' group by g.id having count(s.id) <> 1
