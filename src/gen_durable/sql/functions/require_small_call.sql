-- require_small_call: raise 22023 if a call has more elements than a function takes at once, else return true.
--
-- A call with a million elements would lock as many rows in one transaction, and others would wait for it.
create or replace function @schema.require_small_call(count int, most int default 10000)
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
