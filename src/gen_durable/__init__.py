"""gen_durable: durable state machines on Postgres."""
