-- key_of_gate: the key in the name of a gate (gate_name.sql): a partition key, or the key of a limit. Inlined, as
-- gate_name.
create or replace function @schema.key_of_gate(gate text)
returns text
language sql immutable parallel safe
return substr(gate, strpos(gate, '/') + 1);
