-- gate_of_crashed_row: the gate of a row whose workers died: null below two crashes in a row, 'last_chance/QUEUE' if the
-- next one fails the row, else 'crashed/QUEUE' (README.md, "Gates"). Inlined, as gate_name.sql.
create or replace function @schema.gate_of_crashed_row(crashes int, max_crashes int, queue text)
returns text
language sql immutable parallel safe
return case when crashes >= 2 then case when crashes + 1 >= max_crashes then 'last_chance/' else 'crashed/' end || queue end;
