-- encode_message: the NOTIFY payload of a message, as `core/messages.py` encodes and decodes it.
--
-- Parameters: kind: 'queue', 'cancel_children' or 'check_cancels'; argument: the queue, the parent's id or the worker.
-- Statements that notify inside the caller's transaction (store/text_params.py) call it; every other message is encoded
-- in Python (tests/core/test_messages.py compares the two).
create or replace function @schema.encode_message(kind text, argument text)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select kind || ':' || argument
$$;

comment on function @schema.encode_message(text, text) is
  'Encodes a message between processes as a NOTIFY payload.';
