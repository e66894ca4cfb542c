-- add_counts: add two objects of counts, {name: count}, key by key. pick counts the rows that it blocks by gate.
create or replace function @schema.add_counts(counts jsonb, more jsonb)
returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_object_agg(merged.name, merged.total)
  from (
    select item.key as name, sum(item.value::int) as total
    from (select * from jsonb_each_text(counts) union all select * from jsonb_each_text(more)) as item
    group by item.key
  ) as merged
$$;
