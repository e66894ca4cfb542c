-- Each instance that is done has as many outcomes as its own state has counted.
select i.id, format('%s counted %s outcomes and has %s', i.fsm, i.result ->> 'steps', i.seq) as problem
from gen_durable.instances i where i.status = 'done' and (i.result ->> 'steps')::int is distinct from i.seq
