-- delete_rows_and_reset_ids: delete every instance, cascade, rate bucket and slot, and reset the ids. Limits stay. Several statements.
--
-- Signals and the journal go by triggers. Locks: the rows.
delete from @schema.instances;
delete from @schema.cascades;
delete from @schema.rate_buckets;
delete from @schema.step_slots;
select setval('@schema.instances_id_seq', 1, false), setval('@schema.signals_id_seq', 1, false);
