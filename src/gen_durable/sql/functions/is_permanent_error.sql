-- is_permanent_error: whether an error lies in the rows that a statement changes, such as one that a trigger of the user raises,
-- so that the statement fails again with the same rows. Not so: errors of connection, server, locks and isolation.
create or replace function @schema.is_permanent_error(code text)
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select code = 'XX000' or (left(code, 2) <> all ('{08,25,40,53,57,58,XX}') and code not in ('55P03', 'GD006'))
$$;
