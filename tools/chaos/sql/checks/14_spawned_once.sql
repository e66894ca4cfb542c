-- What an end starts is started once.
select i.id, format('it started %s', count(s.id)) as problem
from gen_durable.instances i left join gen_durable.instances s on s.metadata ->> 'by' = i.id::text
where i.fsm = 'Relay' and i.status = 'done' group by i.id having count(s.id) <> 1
