-- cause_of_claim: what made the current claim of a row run, as the history names it.
--
-- Parameters: columns of the row while it executes, before its outcome.
-- A retried row (retry.sql) keeps its error and has no attempts, until its step progresses. No other row is so.
-- No SET and a SQL-standard body: flush inlines it. Index, locks: none. Guarded by tests/store/test_history.py.
create or replace function @schema.cause_of_claim(
  claims bigint, seq bigint, timed_out_claim bigint, crashes int, attempt bigint, last_error text, joined boolean,
  awaits text[]
)
returns text
language sql
immutable
return case
  when timed_out_claim = claims then 'deadline'
  when crashes > 0 then 'crash'
  when attempt > 0 then 'retry'
  when last_error is not null then 'operator'
  when joined then 'children'
  when awaits is not null then 'signal'
  when seq = 0 then 'start'
  else 'next'
end;
