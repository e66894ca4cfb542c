-- Counters only go up: an executing row was claimed, a row with outcomes was claimed at least as often as it crashed.
select g.id, format('claims %s, seq %s, crashes %s, attempt %s', g.claims, g.seq, g.crashes, g.attempt) as problem
from @schema.gen_durable g
where g.claims < 0 or g.seq < 0 or g.crashes < 0 or g.attempt < 0
   or (g.status = 'executing' and g.claims = 0) or (g.seq > 0 and g.claims = 0)
