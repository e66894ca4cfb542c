-- live_index: the optional index behind `gen-durable grant ... --max-live`, which creates it before the first such quota.
-- take_login_quota counts the live rows of a login with it. It exists only then, since every update of a live row that is not
-- in place (HOT) writes to it. No update becomes one by it: inserted_by never changes, and finished_at is in other
-- indexes already. Run it outside a transaction; writers continue meanwhile.
create index concurrently if not exists instances_live_of_login on @schema.instances (inserted_by)
  where finished_at is null and inserted_by is not null
