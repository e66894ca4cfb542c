-- A cancel is to be carried on since long ago and nobody does it: no worker looks after this database.
select l.origin as id, format('what follows from its end is to be done since %s', l.inserted_at) as problem
from @schema.cascades l where l.inserted_at < now() - interval '60 seconds'
