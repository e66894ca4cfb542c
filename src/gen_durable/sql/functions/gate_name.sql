-- gate_name: the name of what a row waits for: 'partition/KEY', 'slot/KEY' or 'rate/KEY', or the number of
-- crashed rows that a worker runs, 'crashed/QUEUE' or 'last_chance/QUEUE' (README.md, "Gates").
--
-- A SQL-standard body without SET is inlined, so an index on blocked_on serves `blocked_on = gate_name('slot', key)` as
-- it serves the written-out text. Null if the key is null.
create or replace function @schema.gate_name(kind text, key text)
returns text
language sql immutable parallel safe
return kind || '/' || key;
