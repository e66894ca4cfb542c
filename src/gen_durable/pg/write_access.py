"""Find out whether a session may write: a worker on a standby, or with a login that only reads, could do nothing."""

from __future__ import annotations

from dataclasses import dataclass

from gen_durable.errors import DatabaseRefused, DatabaseUnavailable
from gen_durable.pg.error_classifier import READ_ONLY_DATABASE
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement


@dataclass(frozen=True, slots=True)
class WriteAccess:
    """The rights of a session. `may_claim`: the login may call `pick`, and that function may update rows."""

    is_read_only: bool
    may_claim: bool

    def check_worker_can_write(self, schema: Schema) -> None:
        """Raises `DatabaseUnavailable` or `DatabaseRefused` if a worker cannot work here."""
        if self.is_read_only:
            raise DatabaseUnavailable(f"a worker cannot start: {READ_ONLY_DATABASE}")
        if not self.may_claim:
            raise DatabaseRefused(
                f"a worker cannot start: its login is read-only in schema {schema.name!r}. Grant it the worker's role "
                "(gen-durable migrate --roles), or use the login of the tables' owner."
            )


def write_access_statement(schema: Schema) -> Statement[WriteAccess]:
    """The rights of the session. Functions that run as their owner (roles.sql) need no rights on tables."""
    text = (
        "select pg_catalog.pg_is_in_recovery() or pg_catalog.current_setting('transaction_read_only') "
        "operator(pg_catalog.=) 'on', coalesce((select pg_catalog.bool_and("
        "pg_catalog.has_function_privilege(p.oid, 'execute') "
        "and (p.prosecdef or pg_catalog.has_table_privilege(t.oid, 'update'))) "
        "from pg_catalog.pg_proc p join pg_catalog.pg_class t "
        "on t.relnamespace operator(pg_catalog.=) p.pronamespace and t.relname operator(pg_catalog.=) 'instances' "
        "where p.proname operator(pg_catalog.=) 'pick' "
        "and p.pronamespace operator(pg_catalog.=) pg_catalog.to_regnamespace($1)), false)"
    )
    return Statement(text, (schema.render("@schema"),), lambda rows: WriteAccess(*rows[0]))
