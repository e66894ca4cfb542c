-- Each instance has ended with the expected result; what was cancelled is cancelled.
select e.id, format('%s ended as %s with %s, not %s (%s)', e.kind, g.status, g.result, coalesce(e.result, '"cancelled"'), g.last_error) as problem
from chaos.expected e join gen_durable.gen_durable g on g.id = e.id
where case
    when e.kind = 'Doomed' then g.status <> 'cancelled'
    when e.result is null then g.status <> 'done'
    -- An error of the step adds an outcome, which 03 has counted.
    when e.kind in ('Book', 'Flaky') then g.status <> 'done' or g.result - 'steps' is distinct from e.result - 'steps'
    else g.status <> 'done' or g.result is distinct from e.result
  end
union all
select c.id, format('a child of %s ended as %s', p.fsm, c.status)
from gen_durable.gen_durable c join gen_durable.gen_durable p on p.id = c.parent_id
where c.status <> case when p.fsm = 'Doomed' then 'cancelled' else 'done' end::gen_durable.durable_status
