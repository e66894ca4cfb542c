-- unique_scope_for_status: the unique_scope of a row that changes its status: kept while the status is in it, else emptied.
--
-- Every statement that sets instances.status sets unique_scope with this, in the same update: an emptied scope is never
-- filled again, so a later transition cannot take the key back and collide. Inlined, as gate_name.
create or replace function @schema.unique_scope_for_status(scope @schema.durable_status[], status @schema.durable_status)
returns @schema.durable_status[]
language sql immutable parallel safe
return case when status = any (scope) then scope else '{}'::@schema.durable_status[] end;
