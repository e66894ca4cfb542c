-- Counters only increase: an executing row was claimed, and so was a row with outcomes.
select i.id, format('claims %s, seq %s, crashes %s, attempt %s', i.claims, i.seq, i.crashes, i.attempt) as problem
from @schema.instances i
where i.claims < 0 or i.seq < 0 or i.crashes < 0 or i.attempt < 0
   or (i.status = 'executing' and i.claims = 0) or (i.seq > 0 and i.claims = 0)
