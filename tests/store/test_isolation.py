"""Functions that look a second time under a lock refuse a transaction in which that look would see nothing new.

Which calls are safe in such a transaction is shown by tests/interleavings/test_isolation.py.
"""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest
from tests.support.rows import executing, instance, parked, seconds
from tests.support.store import Store

from gen_durable.store.statements import Statement
from gen_durable.store.types import Commit

HEAD = executing(1, partition_key="k") + instance(
    2, partition_key="k", blocked_on="partition/k", eligible_at=seconds(-1)
)


def run_in(store: Store, level: str, call: Statement[Any]) -> str | None:
    """The SQLSTATE that a call ends in, or None."""
    store.given(f"begin isolation level {level}")
    try:
        store.run(call)
    except asyncpg.PostgresError as error:
        return str(error.sqlstate)
    finally:
        store.given("rollback")
    return None


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_what_looks_twice_is_refused(store: Store, level: str) -> None:
    """A flush, and what frees a gate; not a call that writes to the row it has locked."""
    store.given(HEAD + parked(3) + executing(4))
    assert run_in(store, level, store.calls.flush([Commit(4, 1, 0, "done")])) == "GD006"
    assert run_in(store, level, store.calls.release_claims([(1, 1, None, None)])) == "GD006"
    assert run_in(store, level, store.calls.cancel([(2, None)], "no", cascade=True)) == "GD006"
    assert run_in(store, level, store.calls.cancel([(3, None)], "no", cascade=True)) is None
    assert run_in(store, level, store.calls.get(1, None)) is None


@pytest.mark.parametrize("level", ["read committed", "read uncommitted"])
def test_the_usual_levels_are_not_refused(store: Store, level: str) -> None:
    store.given(HEAD)
    assert run_in(store, level, store.calls.flush([Commit(1, 1, 0, "done")])) is None
    assert run_in(store, level, store.calls.cancel([(2, None)], "no", cascade=True)) is None
