-- Nothing is stuck: every instance has ended.
select i.id, format('%s.%s is %s, claims %s, seq %s, blocked on %s, %s', i.fsm, i.step, i.status, i.claims, i.seq, i.blocked_on, i.last_error) as problem
from gen_durable.instances i where i.finished_at is null
