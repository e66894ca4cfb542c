"""Tests share one server: none terminates sessions of another test."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
# The session itself, a login of the test's own, or sessions that name the schema of the test.
OWN_SESSION = re.compile(r"pg_backend_pid\(\)\)")
OWN_LOGIN = re.compile(r"\busename (?:= (?:\$1|%s)|like %s)")
OWN_SCHEMA = re.compile(r"\{(?:e\.rows\.)?schema\}")
# All sessions of the login that the connection uses: only right if the test has a login of its own.
CURRENT_LOGIN = re.compile(r"\busename = (?:current_user|user)\b")
PRIVATE = re.compile(r"\bprivate(?:_dsn)?\b")


def calls_of(source: str) -> list[str]:
    """Each call that terminates sessions, with what follows it up to the end of its statement, roughly."""
    return [
        source[found.start() : found.start() + 300]
        for found in re.finditer(r"pg_(?:terminate|cancel)_backend\(", source)
    ]


def is_own(call: str, source: str) -> bool:
    if OWN_SESSION.search(call) or OWN_LOGIN.search(call) or OWN_SCHEMA.search(call):
        return True
    return (
        CURRENT_LOGIN.search(call) is not None
        and "def private_dsn" not in source
        and PRIVATE.search(source) is not None
    )


def test_no_test_terminates_sessions_of_other_tests() -> None:
    """Each call names its own session, a login of the test, or the test's schema."""
    foreign = [
        f"{path.relative_to(TESTS)}: {call.splitlines()[0]}"
        for path in sorted(TESTS.rglob("*.py"))
        if path != Path(__file__)
        for call in calls_of(path.read_text("utf-8"))
        if not is_own(call, path.read_text("utf-8"))
    ]
    assert foreign == []


def test_a_test_that_terminates_all_idle_sessions_is_found() -> None:
    everyone = "select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction'"
    assert not is_own(calls_of(everyone)[0], everyone)
    assert is_own(f"{everyone} and usename = current_user", "async def test(private_dsn: str) -> None:")
    assert not is_own(f"{everyone} and usename = current_user", "async def test(dsn: str) -> None:")
