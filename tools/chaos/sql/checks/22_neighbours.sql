-- No other instance fails because it ran beside a step that kills its worker.
select i.id, format('%s ended as failed (%s)', i.fsm, i.last_error) as problem
from gen_durable.instances i left join chaos.expected e on e.id = i.id
where i.status = 'failed' and not (i.fsm = 'Poison' and e.result is null)
