-- crash_loop_error: the error of an instance that the reaper has failed.
create or replace function @schema.crash_loop_error(step text, crashes int)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select format(
    'crash loop: step %s ended %s times without an outcome (its worker died or lost its lease)', step, crashes
  )
$$;
