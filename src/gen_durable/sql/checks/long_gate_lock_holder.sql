-- A session has locked partition keys or limits for more than 60 s, and their work waits: end its transaction, or the session with pg_terminate_backend(pid). The ids are pids. Needs pg_read_all_stats to see sessions of other logins.
select holder.pid as id, format(
  'login %s, application %s, holds %s locks since %s', holder.usename, holder.application_name, held.total,
  holder.xact_start
) as problem
from pg_stat_activity holder
cross join lateral (
  select count(*) as total from @schema.gate_locks lock where lock.xmax = holder.backend_xid
) as held
where holder.backend_xid is not null and holder.xact_start < now() - interval '60 seconds' and held.total > 0
