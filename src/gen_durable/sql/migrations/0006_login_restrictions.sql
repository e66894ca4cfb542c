-- Baseline, a part of its own: what single logins may insert, and how much (docs/howto/roles.md).

-- insert looks for the row of its login; without one nothing else is read. take_login_quota locks and updates it.
create table @schema.restricted_logins (
  login               oid primary key,
  login_name          text not null,
  max_live            int check (max_live between 1 and 1000000),
  live_left           int not null default 0,
  inserts_per_second  float8 check (inserts_per_second between 0.001 and 1000000),
  drained_until       timestamptz
)
with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
comment on table @schema.restricted_logins is
  'One row per login with grants or quotas. Written by gen-durable grant and revoke; insert counts here.';
comment on column @schema.restricted_logins.login is
  'The oid of the login: a renamed login keeps its grants, and another with its old name does not get them.';
comment on column @schema.restricted_logins.login_name is
  'Its name when the grant was made, to recognise a login that no longer exists.';
comment on column @schema.restricted_logins.max_live is 'How many of its instances may be live; null for any number.';
comment on column @schema.restricted_logins.live_left is
  'How many it may insert before its live instances are counted again.';
comment on column @schema.restricted_logins.inserts_per_second is 'Null for any number.';
comment on column @schema.restricted_logins.drained_until is 'When its bucket of inserts is full again; null if it is.';

create table @schema.grants (
  login             oid not null references @schema.restricted_logins on delete cascade,
  machine           text,
  queue             text,
  most_urgent       smallint,
  partition_prefix  text,
  unique nulls not distinct (login, machine, queue)
);
comment on table @schema.grants is
  'What a login may insert: anything that one of its rows allows. A login without a row may insert everything.';
comment on column @schema.grants.machine is 'The only machine; null for any.';
comment on column @schema.grants.queue is 'The only queue; null for any.';
comment on column @schema.grants.partition_prefix is 'How partition keys must begin; null for any.';
comment on column @schema.grants.most_urgent is 'The lowest number of a priority, which is the most urgent; null for any.';
