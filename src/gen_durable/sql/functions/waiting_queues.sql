-- waiting_queues: the queues in which rows wait for limits, gate by gate. Index: instances_limited, stepping from queue to
-- queue.
create or replace function @schema.waiting_queues(gates text[])
returns table (gate text, queue text)
language sql
set search_path = pg_catalog, pg_temp
as $$
  with recursive w as (
    select k.gate, (
      select b.queue from @schema.instances b
      where b.blocked_on = k.gate and not starts_with(b.blocked_on, 'partition/') order by b.queue limit 1
    ) as queue
    from unnest(gates) as k (gate)
    union all
    select w.gate, (
      select b.queue from @schema.instances b
      where b.blocked_on = w.gate and not starts_with(b.blocked_on, 'partition/') and b.queue > w.queue
      order by b.queue limit 1
    )
    from w where w.queue is not null
  )
  select w.gate, w.queue from w where w.queue is not null
$$;
