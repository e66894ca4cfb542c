-- reapply_limit: let back or tell anew the rows that wait for a limit, of all its partitions. Returns their queues.
--
-- A row whose moment has come is left as it is: it can be picked, and asks by the new policy.
-- The asker holds the lock of the policy. Index: instances_token_due, instances_blocked.
create or replace function @schema.reapply_limit(name text)
returns text[]
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
  told bigint[];
  gates text[] := '{}';
  gate text;
begin
  told := array(
    select t.id from (
      select i.id from @schema.instances i where i.token_at > clock_timestamp() and i.rate_key = name
      union all
      select i.id from @schema.instances i
      where i.token_at > clock_timestamp() and i.rate_key > name || '/' and i.rate_key < name || '0'
    ) as t
  );
  update @schema.instances i set blocked_on = @schema.gate('rate', i.rate_key), token_at = null
  where i.id = any (array(
    select l.id from (
      select i.id, i.token_at from @schema.instances i where i.id = any (told) order by i.id for no key update
    ) as l
    where l.token_at > clock_timestamp()
  ));

  foreach gate in array array[@schema.gate('rate', name), @schema.gate('slot', name)] loop
    if exists (select from @schema.instances i where i.blocked_on = gate) then
      gates := gates || gate;
    end if;
    gate := gate || '/';
    loop
      select i.blocked_on into gate from @schema.instances i
      where i.blocked_on > gate and i.blocked_on < left(gate, 5) || name || '0' order by i.blocked_on limit 1;
      exit when not found;
      gates := gates || gate;
    end loop;
  end loop;
  return @schema.unblock(gates, true);
end
$$;
