-- Each instance that is done has as many outcomes as its own state has counted.
select g.id, format('%s counted %s outcomes and has %s', g.fsm, g.result ->> 'steps', g.seq) as problem
from gen_durable.gen_durable g where g.status = 'done' and (g.result ->> 'steps')::int is distinct from g.seq
