-- children_of: the children of one round of a parent, in the order they were started, as a JSON array.
-- Index: gen_durable_parent.
create or replace function @schema.children_of(parent bigint, of_round int)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_agg(
    jsonb_build_object(
      'id', c.id, 'machine', c.fsm, 'version', c.fsm_version, 'step', c.step, 'status', c.status,
      'last_error', c.last_error, 'result', c.result::text, 'state', c.state::text
    ) order by c.id
  )
  from @schema.gen_durable c
  where c.parent_id = parent and c.parent_round = of_round
$$;
