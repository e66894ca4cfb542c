-- gate_row_id: the row of gate_locks that stands for a gate ('partition/KEY', 'slot/KEY', 'rate/KEY').
--
-- Partition keys share the rows 0 to 2047, limits the rows 2048 to 4095: a change of a limit locks all rows of limits
-- (set_limit.sql). Two gates with the same row sometimes wait for each other, without further effect. Inlined, as
-- gate_name. Null if the gate is null.
create or replace function @schema.gate_row_id(gate text)
returns bigint
language sql immutable parallel safe
return (hashtextextended(gate, 0) & 2047) + case when starts_with(gate, 'partition/') then 0 else 2048 end;
