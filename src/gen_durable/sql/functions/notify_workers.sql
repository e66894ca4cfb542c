-- notify_workers: send messages to other processes; the commit of the calling transaction delivers them.
--
-- Parameters: kind: 'queue', 'cancel_children' or 'check_cancel_requests'; arguments: the queues, the parents' ids or the
-- workers, one message each, of at most 500 characters; nulls are left out. The payloads are those of
-- `core/notification_messages.py` (tests/core/test_notification_messages.py compares the two), the
-- channel is that of `store/schema.py`.
-- Raises 22023 for another kind, and for an argument that no receiver would accept.
-- Locks: Postgres serializes the commits of all transactions that notify, in the whole database (ADR 22).
create or replace function @schema.notify_workers(kind text, arguments text[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
set jit = off
set plan_cache_mode = force_generic_plan
as $$
begin
  perform @schema.require_max_elements(cardinality(arguments));
  if (kind in ('queue', 'cancel_children', 'check_cancel_requests')) is not true then
    raise exception 'kind must be queue, cancel_children or check_cancel_requests, got %', quote_nullable(left(kind, 40))
      using errcode = '22023';
  end if;
  if exists (
    select from unnest(arguments) as message (argument)
    where length(message.argument) > 500
      or (kind = 'cancel_children' and message.argument !~ '^([0-9]{1,19})?$')
      or (kind <> 'cancel_children' and message.argument = '')
  ) then
    raise exception 'an argument of % must be %', kind,
      case kind when 'cancel_children' then 'an id' else 'a name of 1 to 500 characters' end
      using errcode = '22023';
  end if;
  perform pg_notify(replace('@schema', '"', '') || '_wake', kind || ':' || message.argument)
  from unnest(arguments) as message (argument)
  where message.argument is not null;
end
$$;

comment on function @schema.notify_workers(text, text[]) is
  'Sends messages to workers and clients with the commit of your transaction: kind is queue, cancel_children or '
  'check_cancel_requests.';
