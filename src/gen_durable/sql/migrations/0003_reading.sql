-- Reading: metadata, and an index for what has gone wrong. Version 3 of the schema.

-- Made anew with one more argument, and with more columns in the answer.
drop function if exists @schema.insert(
  text[], int[], text[], jsonb[], text[], smallint[], text[], float8[], timestamptz[], bytea[], text[], text, jsonb[], text[]
);
drop function if exists @schema.get(bigint, bytea);

-- What its owner says about an instance, to find it by: a JSON object. The engine never looks at it. There is no index
-- unless somebody asks for one: metadata_index.sql.
alter table @schema.instances add column if not exists metadata jsonb;

-- filter_sql.sql: what has failed or was cancelled, newest first. Rows that go well are never in it and pay nothing for it.
create index if not exists instances_ended_badly on @schema.instances (id) where status in ('failed', 'cancelled');
