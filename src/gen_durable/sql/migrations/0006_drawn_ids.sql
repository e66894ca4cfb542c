-- Baseline, a part of its own: ids that were drawn before their instances are inserted.

-- allocate_ids writes it, use_up_allocated_ids and insert_instances_of_outcomes delete from it, gc_unused_ids what is left.
create table @schema.allocated_ids (
  id            bigint primary key,
  allocated_at  timestamptz not null default now(),
  login         oid
);
comment on table @schema.allocated_ids is
  'Ids that were drawn for instances which are not inserted yet: only with a codec. Each can be used once.';
comment on column @schema.allocated_ids.login is 'The login that may use the id; null without roles.';
