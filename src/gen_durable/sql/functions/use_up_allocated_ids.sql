-- use_up_allocated_ids: use up ids that this login has drawn with allocate_ids, for instances that this transaction
-- inserts.
--
-- Raises GD008 if one of them was drawn by another login, was used before, is listed twice, or was never drawn: so an id
-- belongs to one instance for good, also after that is deleted.
-- Index: primary key. Locks: the entries of allocated_ids, in the order of ids; those of other logins are not locked.
-- Two calls with one id wait for each other, and the second one raises (tests/interleavings: insert_insert_one_id).
create or replace function @schema.use_up_allocated_ids(ids bigint[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  taker constant oid := case when session_user <> current_user then @schema.session_login() end;  -- as in allocate_ids
  taken int;
begin
  delete from @schema.allocated_ids allocated
  where allocated.id = any (ids) and allocated.login is not distinct from taker;
  get diagnostics taken = row_count;
  if taken <> cardinality(ids) then
    raise exception 'an id was not drawn by this login with allocate_ids(), or was used before' using errcode = 'GD008',
      hint = 'Draw new ids with allocate_ids() and use each once.';
  end if;
end
$$;
