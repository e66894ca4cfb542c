-- The ledger: what was committed, written down by triggers in the very transactions that committed it.
create schema chaos;

-- One row per outcome.
create table chaos.ledger (
  n        bigint generated always as identity,
  id       bigint not null,
  seq      int not null,
  claims   int not null,
  step     text not null,               -- the one that ran
  was      text not null,               -- the status before
  status   text not null,
  replayed boolean not null,            -- after an error of the step
  at       timestamptz not null default clock_timestamp(),
  began    timestamptz not null default now()
);

-- One row per claim that did not end by an outcome of its owner.
create table chaos.lost (
  id       bigint not null,
  claims   int not null,
  worker   text not null,
  how      text not null,               -- reaped: its lease ran out; ended: it was to be cancelled, and so it was; released: given back
  at       timestamptz not null default clock_timestamp()
);

-- One row per claim under a limit.
create table chaos.grants (
  id       bigint not null,
  claims   int not null,
  rate_key text,
  at       timestamptz not null default clock_timestamp(),
  began    timestamptz not null default now()
);

-- The users' own rows, written by transactional steps. Nothing forbids a second one: it would be seen.
create table chaos.book (id bigint not null, seq bigint not null, visit bigint not null, receipt text not null);

create function chaos.note() returns trigger language plpgsql as $$
begin
  if new.seq <> old.seq then
    insert into chaos.ledger (id, seq, claims, step, was, status, replayed) values (
      new.id, new.seq, new.claims, old.fsm || '.' || old.step, old.status::text, new.status::text,
      new.attempt > old.attempt
    );
  end if;
  if new.claims <> old.claims then
    if old.status = 'executing' then
      insert into chaos.lost (id, claims, worker, how)
      values (old.id, old.claims, old.locked_by, case
        when new.status = 'cancelled' then 'ended' when new.attempt > old.attempt then 'reaped' else 'released'
      end);
    elsif new.status = 'executing' and new.rate_key is not null then
      insert into chaos.grants (id, claims, rate_key) values (new.id, new.claims, new.rate_key);
    end if;
  end if;
  return null;
end
$$;

create trigger chaos after update on gen_durable.instances for each row
  when (new.seq <> old.seq or new.claims <> old.claims) execute function chaos.note();

-- What the other side knows; filled when all is over.
create unlogged table chaos.effects (
  worker text not null, id bigint not null, claims bigint not null, seq bigint not null, attempt bigint not null,
  step text not null, began bigint not null, ended bigint
);
create unlogged table chaos.expected (
  key text not null, id bigint not null, kind text not null, result jsonb, partition_key text
);
create unlogged table chaos.sent (id bigint not null, letter int not null, acked boolean not null);
create unlogged table chaos.workers (name text not null, pid int not null, killed_at timestamptz);
