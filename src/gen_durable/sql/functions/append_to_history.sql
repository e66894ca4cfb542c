-- append_to_history: instances.history with one more outcome, packed into a line.
--
-- Parameters: history, the column before; entry, the outcome as a worker encodes it (store/history_entries.py); clock, the
-- time of the flush, and stamp, the same in microseconds; worker; and of the row before the outcome eligible_at, attempt
-- and the cause (cause_of_claim.sql).
-- A line is the entry and, unless it is short, five more fields: stamp, microseconds since the row was eligible, attempt,
-- cause and worker. Separators are a tab and a line feed; names have neither. The first character says what follows what:
--   -, =  the first outcome of a claim
--   ~, #  a later one, which was not waiting, in a full line
--   +, *  a later one in a short line
-- The second of each pair is followed by a full line or none. If the text has more than 500
-- characters then, it is marked with `!`: record_transitions copies it into a row in the same transaction, and the next outcome
-- begins a new text. So no outcome updates the row twice, and the row stays short.
-- The newest line comes first, and the column is the last of its table: an update on the same page logs the bytes between
-- those that the old and the new row begin and end with, so the older lines cost no WAL. Numbers are cast to text by hand:
-- `||` of a number and a text is stable, and the function would not be inlined, which takes 3 microseconds more.
-- No SET and a SQL-standard body: flush inlines it. Index, locks: none. Guarded by tests/store/test_history.py.
create or replace function @schema.append_to_history(
  history text, entry text, clock timestamptz, stamp text, worker text, eligible_at timestamptz, attempt bigint, cause text
)
returns text
language sql
immutable
return case
  when starts_with(entry, '+') then entry || chr(10) || history
  else case when length(history) > 500 and not starts_with(history, '!') and left(entry, 1) in ('=', '#', '*') then '!' else '' end
    || (
      entry || case
        when starts_with(entry, '*') then chr(10)
        else chr(9) || stamp || chr(9) || case
            when left(entry, 1) in ('-', '=') then (date_part('epoch', clock - eligible_at) * 1000000)::bigint::text else ''
          end || chr(9) || attempt::text || chr(9) || cause || chr(9) || worker || chr(10)
      end
    ) || case when history is null or starts_with(history, '!') then '' else history end
end;
