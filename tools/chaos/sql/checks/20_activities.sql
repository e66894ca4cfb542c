-- An activity that is finished is not called again in its visit, and its answer is what the step goes on with.
select b.id, format('visit %s: %s wrote %s, %s finished: %s', b.visit, b.seq, b.receipt, a.finished, a.receipts) as problem
from chaos.book b
cross join lateral (
  select count(*) as finished, array_agg(a.result #>> '{}') as receipts
  from gen_durable.activities a where a.instance_id = b.id and a.visit = b.visit and a.error is null
) as a
where a.finished <> 1 or a.receipts <> array[b.receipt]
