-- Each outcome was committed by the worker that held the claim, of an execution that had come to its end.
select l.id, format('outcome %s of %s was committed under claim %s, which never ran it', l.seq, l.step, l.claims) as problem
from chaos.ledger l
where l.status <> 'cancelled'
  and not (l.status = 'failed' and exists (  -- failed by the reaper: checks 21, 22
    select from gen_durable.instances i where i.id = l.id and i.last_error like 'crash loop: %'
  ))
  and not exists (select from chaos.effects e where e.id = l.id and e.claims = l.claims and e.seq = l.seq - 1 and e.step = l.step)
union all
select l.id, format('outcome %s of %s was committed although it was %s', l.seq, l.step, l.was)
from chaos.ledger l where l.was <> 'executing'
union all
select l.id, format('outcome %s of %s was committed by %s; its claim was that of %s', l.seq, l.step, w.name, e.worker)
from chaos.ledger l
join chaos.effects e on e.id = l.id and e.claims = l.claims and e.seq = l.seq - 1
join gen_durable.transitions t on t.instance_id = l.id and t.seq = l.seq
left join chaos.workers w on w.pid = split_part(t.worker, ':', 2)::int
where w.name is distinct from e.worker
union all
select l.id, format('outcome %s of %s was committed %s ms before its execution had ended', l.seq, l.step, round(1000 * (e.ended - l.moment)))
from (select l.*, extract(epoch from l.at) as moment from chaos.ledger l) as l
join (
  select e.id, e.claims, e.seq, (max(coalesce(e.ended, 9e18)) + @offset) / 1e9 as ended from chaos.effects e group by e.id, e.claims, e.seq
) as e on e.id = l.id and e.claims = l.claims and e.seq = l.seq - 1
where e.ended > l.moment + @slack and l.status <> 'cancelled' and l.step <> 'Hanging.hang'  -- its end is not recorded
