-- require_max_elements: raise 22023 if a call has more elements than a function takes at once, else return true.
--
-- A call with a million elements would lock as many rows in one transaction, and others would wait for it. So every
-- function that a role may call and that takes arrays bounds each of them: 10,000 elements where a client chooses their
-- number; 100,000 where the engine does, which is above all that it sends (a worker's claims, the steps that it knows).
-- Functions of the hot path compare the sizes first, because a comparison costs less than this call.
-- Guarded by tests/security/test_call_sizes.py.
create or replace function @schema.require_max_elements(count int, most int default 10000)
returns boolean
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if count > most then
    raise exception 'at most % elements go in one call, got %', most, count using errcode = '22023';
  end if;
  return true;
end
$$;
