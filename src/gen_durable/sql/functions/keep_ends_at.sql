-- keep_ends_at: when the time passes for which a row is kept after its end, as a timestamp in UTC.
--
-- The expression of the index instances_keep_passed. The sum of a timestamptz and an interval depends on the time zone of
-- the session, so it is not immutable; that of a timestamp is. Inlined, as gate_name.
create or replace function @schema.keep_ends_at(finished_at timestamptz, keep_seconds float8)
returns timestamp
language sql immutable parallel safe
return (finished_at at time zone 'UTC') + make_interval(secs => keep_seconds);
