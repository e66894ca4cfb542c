-- qualified_step_name: a step as workers announce it in `known`: 'machine/version/step'. Inlined, as gate_name.
create or replace function @schema.qualified_step_name(fsm text, fsm_version int, step text)
returns text
language sql immutable parallel safe
return fsm || '/' || fsm_version::text || '/' || step;
