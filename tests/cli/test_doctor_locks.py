"""The doctor's look at locks and at the server: which session holds what, and which rows of locks are missing."""

from __future__ import annotations

import psycopg
from tests.support.store import Store, store

from gen_durable.cli.doctor import _finding_details
from gen_durable.invariant_checker import Finding, Violation
from gen_durable.store.sql_files import checks

__all__ = ["store"]


def check(store: Store, name: str, limit: str = "", instead: str = "") -> list[tuple[int, str]]:
    """The rows of a check, with another threshold than the shipped one."""
    sql = dict(checks(store.schema))[name]
    assert limit in sql
    return [tuple(row) for row in store.sql(sql.replace(limit, instead) if limit else sql)]


def test_a_session_that_holds_locks_is_named(store: Store, dsn: str) -> None:
    with psycopg.connect(dsn, application_name="it") as holder:
        assert check(store, "long_gate_lock_holder", "60 seconds", "0 seconds") == []
        sql = store.schema.render("select from @schema.gate_locks where id in (1, 2, 3) for no key update")
        holder.execute(sql.encode())
        ((pid, problem),) = check(store, "long_gate_lock_holder", "60 seconds", "0 seconds")
        assert pid == holder.info.backend_pid
        assert problem.startswith(f"login {holder.info.user}, application it, holds 3 locks since 20")
        assert check(store, "long_gate_lock_holder") == []
        holder.rollback()
        assert check(store, "long_gate_lock_holder", "60 seconds", "0 seconds") == []
    finding = Finding("long_gate_lock_holder", "why", 1, (Violation(pid, problem),))
    assert f"pid {pid}: login " in str(_finding_details(finding))


def test_a_missing_row_is_named(store: Store) -> None:
    assert check(store, "missing_gate_lock") == []
    store.given("delete from @schema.gate_locks where id in (-64, 4095)")
    assert [number for number, _ in check(store, "missing_gate_lock")] == [-64, 4095]
    store.given("insert into @schema.gate_locks values (-64), (4095)")


def test_a_full_queue_of_notifications_is_reported(store: Store) -> None:
    assert check(store, "full_notification_queue") == []
    assert check(store, "full_notification_queue", "> 0.5", ">= 0") == [(0, "it is 0 % full")]
