-- timestamp_shifts: one UPDATE for every table of the schema, which moves all its timestamps back by the interval $1.
--
-- Parameter: the name of the schema. Returns statements. They are built from the catalog, so that a timestamp in a
-- table or column of a later version is included: a partial shift would separate timestamps that belong together.
-- Generated columns follow by themselves; the table of migrations is left out.
select format(
  'update %I.%I set %s',
  c.table_schema, c.table_name,
  string_agg(format('%1$I = %1$I - $1::interval', c.column_name), ', ' order by c.column_name)
)
from information_schema.columns c
join information_schema.tables t using (table_schema, table_name)
where c.table_schema = $1 and t.table_type = 'BASE TABLE' and c.table_name <> 'migrations'
  and c.data_type = 'timestamp with time zone' and c.is_generated = 'NEVER'
group by c.table_schema, c.table_name
order by c.table_name
