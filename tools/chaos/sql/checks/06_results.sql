-- Each instance has ended with the expected result; what was cancelled is cancelled.
select e.id, format('%s ended as %s with %s, not %s (%s)', e.kind, i.status, i.result, coalesce(e.result, '"cancelled"'), i.last_error) as problem
from chaos.expected e join gen_durable.instances i on i.id = e.id
where case
    when e.kind = 'Doomed' then i.status <> 'cancelled'
    when e.kind = 'Poison' and e.result is null then false  -- check 21
    when i.status = 'failed' then false  -- check 22
    when e.result is null then i.status <> 'done'
    -- An error of the step adds an outcome, which 03 has counted.
    when e.kind in ('Book', 'Flaky', 'Poison', 'Hanging', 'Blocker', 'Large') then i.status <> 'done' or i.result - 'steps' is distinct from e.result - 'steps'
    else i.status <> 'done' or i.result is distinct from e.result
  end
union all
select c.id, format('a child of %s ended as %s', p.fsm, c.status)
from gen_durable.instances c join gen_durable.instances p on p.id = c.parent_id
where c.status <> case when p.fsm = 'Doomed' then 'cancelled' else 'done' end::gen_durable.durable_status
