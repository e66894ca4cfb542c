-- heads_partition: whether a due row is the one that its partition key may run next: nobody of the key is executing,
-- and no due row of the key comes before it by (priority, due_at, id).
-- Index: gen_durable_partition, gen_durable_partition_order. Called only for rows that have a key.
create or replace function @schema.heads_partition(
  key text, of_priority smallint, of_due_at timestamptz, of_id bigint
)
returns boolean
language plpgsql
volatile  -- so that each call takes a snapshot of its own: the check after the lock must see who held it before
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  return not exists (
    select from @schema.gen_durable e where e.status = 'executing' and e.partition_key = key
  ) and not exists (
    select from @schema.gen_durable h
    where h.partition_key = key and h.due_at <= now()
      and (h.priority, h.due_at, h.id) < (of_priority, of_due_at, of_id)
  );
end
$$;
