-- The server's queue of notifications is more than half full; when it is full, commits that notify fail. A session that listens, on any channel, has an old open transaction: end it; the server's log names its pid.
select 0 as id, format('it is %s %% full', round(used.share * 100)) as problem
from (select pg_notification_queue_usage()::numeric as share) as used where used.share > 0.5
