-- policy_changed: let back or tell anew the rows that wait for a limit, of all its partitions. Returns their queues.
--
-- A row whose moment has come is left as it is: it can be picked, and asks by the new policy.
-- The asker holds the lock of the policy. Index: gen_durable_told, gen_durable_blocked.
create or replace function @schema.policy_changed(name text)
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
      select g.id from @schema.gen_durable g where g.token_at > clock_timestamp() and g.rate_key = name
      union all
      select g.id from @schema.gen_durable g
      where g.token_at > clock_timestamp() and g.rate_key > name || '/' and g.rate_key < name || '0'
    ) as t
  );
  update @schema.gen_durable g set blocked_on = 'rate/' || g.rate_key, token_at = null
  where g.id = any (array(
    select l.id from (
      select g.id, g.token_at from @schema.gen_durable g where g.id = any (told) order by g.id for no key update
    ) as l
    where l.token_at > clock_timestamp()
  ));

  foreach gate in array array['rate/' || name, 'slot/' || name] loop
    if exists (select from @schema.gen_durable g where g.blocked_on = gate) then
      gates := gates || gate;
    end if;
    gate := gate || '/';
    loop
      select g.blocked_on into gate from @schema.gen_durable g
      where g.blocked_on > gate and g.blocked_on < left(gate, 5) || name || '0' order by g.blocked_on limit 1;
      exit when not found;
      gates := gates || gate;
    end loop;
  end loop;
  return @schema.hand_over(gates, true);
end
$$;
