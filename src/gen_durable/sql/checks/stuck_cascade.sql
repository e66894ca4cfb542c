-- A cascade is older than 60 s: no worker reaps this database.
select entry.origin as id, format('its descendants wait to be cancelled since %s', entry.inserted_at) as problem
from @schema.cascades entry where entry.inserted_at < now() - interval '60 seconds'
