-- Baseline, a part of its own: the row that identifies this installation.

create table @schema.installation (idempotency_prefix text not null, handle_token_key bytea not null, roles text);
comment on table @schema.installation is 'Exactly one row.';
comment on column @schema.installation.idempotency_prefix is
  'Part of every idempotency key: ids begin at 1 in each installation, and keys of two must not be equal.';
comment on column @schema.installation.handle_token_key is
  'The secret with which clients make and verify handle.token: 32 random bytes. Every role of gen_durable can read it.';
comment on column @schema.installation.roles is 'The prefix of the roles (migrate --roles); null without roles.';
-- uuids are the random numbers of Postgres that need no extension: 244 bits of two are random.
insert into @schema.installation (idempotency_prefix, handle_token_key) values (
  left(replace(gen_random_uuid()::text, '-', ''), 12), uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
);
