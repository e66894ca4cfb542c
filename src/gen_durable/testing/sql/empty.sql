-- empty: forget every instance, so that the next one is the first. Limits stay. Several statements.
--
-- Signals and the journal go by triggers. Locks: the rows.
delete from @schema.gen_durable;
delete from @schema.gen_durable_cascades;
delete from @schema.gen_durable_buckets;
delete from @schema.gen_durable_slots;
select setval('@schema.gen_durable_id_seq', 1, false), setval('@schema.signals_id_seq', 1, false);
