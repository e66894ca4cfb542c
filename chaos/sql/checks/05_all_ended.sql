-- Nothing is stuck: every instance has ended.
select g.id, format('%s.%s is %s, claims %s, seq %s, blocked on %s, %s', g.fsm, g.step, g.status, g.claims, g.seq, g.blocked_on, g.last_error) as problem
from gen_durable.gen_durable g where g.finished_at is null
