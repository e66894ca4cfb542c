-- begin_fanout: lock the parent of many children, and give out their ids in the order in which they are listed.
--
-- In: the fence of the parent's claim; how many children. Out: their ids; null: the claim is not the asker's any more,
-- or its outcome is committed already, or it is to be cancelled, and the flush that follows in the same transaction says which.
-- Index: primary key. Locks: the parent's row, to the end of the transaction.
create or replace function @schema.begin_fanout(parent bigint, claim int, seq int, count int)
returns bigint[]
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '1s'  -- as flush
set enable_seqscan = off
as $$
#variable_conflict use_variable
begin
  perform from @schema.instances i
  where i.id = parent and i.claims = claim and i.seq = seq and i.cancel_reason is null
  for no key update;
  if not found then
    return null;
  end if;
  return array(select nextval('@schema.instances_id_seq'::regclass) from generate_series(1, count));
end
$$;
