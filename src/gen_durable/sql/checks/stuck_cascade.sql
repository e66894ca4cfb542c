-- Children are to be cancelled since long ago and nobody does it: no worker looks after this database.
select l.parent_id as id, format('its children are to be cancelled since %s', l.inserted_at) as problem
from @schema.gen_durable_cascades l where l.inserted_at < now() - interval '60 seconds'
