-- Each accepted signal was consumed once; one that may have been sent, at most once; no other.
select s.id, format('letter %s was accepted and never taken', s.letter) as problem
from chaos.sent s join gen_durable.gen_durable g on g.id = s.id
where s.acked and not coalesce(g.result -> 'got' @> to_jsonb(s.letter), false)
union all
select g.id, format('letter %s was taken %s times', l.letter, count(*))
from gen_durable.gen_durable g cross join lateral jsonb_array_elements_text(g.result -> 'got') as l (letter)
where g.fsm = 'Mailbox' group by g.id, l.letter having count(*) > 1
union all
select g.id, format('letter %s was never sent', l.letter)
from gen_durable.gen_durable g cross join lateral jsonb_array_elements_text(g.result -> 'got') as l (letter)
where g.fsm = 'Mailbox' and not exists (select from chaos.sent s where s.id = g.id and s.letter = l.letter::int)
