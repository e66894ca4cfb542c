-- Baseline, a part of its own: the row that identifies this installation.

create table @schema.installation (token text not null, roles text);
comment on table @schema.installation is 'Exactly one row.';
comment on column @schema.installation.token is
  'Part of every idempotency key: ids begin at 1 in each installation, and keys of two must not be equal.';
comment on column @schema.installation.roles is 'The prefix of the roles (migrate --roles); null without roles.';
insert into @schema.installation (token) values (left(replace(gen_random_uuid()::text, '-', ''), 12));
