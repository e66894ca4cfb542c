-- require_read_committed: refuse a transaction in which a second look would see nothing new.
--
-- In repeatable read and serializable all statements of a transaction see one snapshot. A look that follows a lock, at
-- the inbox of a row that parks or at the rows of a gate, then misses what was committed before the lock was granted,
-- without an error. Callers whose looks are followed by a write to the same row need no check: Postgres reports 40001.
-- Raises GD006.
-- Guarded by tests/interleavings/test_isolation.py.
create or replace function @schema.require_read_committed()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    raise exception 'the transaction is %, and a wake-up could be lost in it', current_setting('transaction_isolation')
      using errcode = 'GD006';
  end if;
end
$$;
