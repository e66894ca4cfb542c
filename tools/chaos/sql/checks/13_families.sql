-- Each fan-out has all its children, once, and was joined after the last of them had ended.
select p.id, format('%s children, started as %s', count(c.id), jsonb_array_length(p.state -> 'children')) as problem
from gen_durable.instances p left join gen_durable.instances c on c.parent_id = p.id
where p.fsm = 'Parent' group by p.id having count(c.id) <> jsonb_array_length(p.state -> 'children')
union all
select p.id, format('joined %s before child %s had ended', l.at, c.id)
from gen_durable.instances p
join gen_durable.instances c on c.parent_id = p.id
join chaos.ledger l on l.id = p.id and l.seq = 2
where p.fsm = 'Parent' and c.finished_at > l.began
