-- Each accepted signal was consumed once; one that may have been sent, at most once; no other.
select s.id, format('letter %s was accepted and never taken', s.letter) as problem
from chaos.sent s join gen_durable.instances i on i.id = s.id
where s.acked and not coalesce(i.result -> 'got' @> to_jsonb(s.letter), false)
union all
select i.id, format('letter %s was taken %s times', l.letter, count(*))
from gen_durable.instances i cross join lateral jsonb_array_elements_text(i.result -> 'got') as l (letter)
where i.fsm = 'Mailbox' group by i.id, l.letter having count(*) > 1
union all
select i.id, format('letter %s was never sent', l.letter)
from gen_durable.instances i cross join lateral jsonb_array_elements_text(i.result -> 'got') as l (letter)
where i.fsm = 'Mailbox' and not exists (select from chaos.sent s where s.id = i.id and s.letter = l.letter::int)
