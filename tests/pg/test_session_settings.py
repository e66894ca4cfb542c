"""The settings of a session depend on the server's version; those of a role behind a pooler are checked."""

from __future__ import annotations

import pytest

from gen_durable.errors import ConfigError
from gen_durable.pg.session_settings import RoleSettings, session_settings_script, transaction_settings_script

ALWAYS = {"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"}


@pytest.mark.parametrize(
    ("version", "later"),
    [
        (13, set[str]()),
        (14, {"idle_session_timeout"}),
        (16, {"idle_session_timeout"}),
        (17, {"idle_session_timeout", "transaction_timeout"}),
    ],
)
def test_only_settings_that_the_server_knows_are_set(version: int, later: set[str]) -> None:
    """Another one would be an error of the server."""
    timeouts = {f"{name} = 0" for name in ALWAYS | later}
    assert set(transaction_settings_script(version).split(";")) == {f"set local {one}" for one in timeouts}
    found = session_settings_script(version).split(";")
    assert {one for one in found if "timeout" in one} == {f"set {one}" for one in timeouts}
    assert "set default_transaction_isolation = 'read committed'" in found


@pytest.mark.parametrize("isolation", ["read committed", "read uncommitted"])
@pytest.mark.parametrize("timeout", [0, 2000])
def test_settings_under_which_the_engine_works(isolation: str, timeout: int) -> None:
    """0 means that statements have no timeout."""
    RoleSettings(isolation, timeout).check_engine_can_work()


@pytest.mark.parametrize(
    ("isolation", "timeout", "words"),
    [
        ("serializable", 0, "default_transaction_isolation is 'serializable' behind a pooler"),
        ("read committed", 1, "statement_timeout is 1 ms behind a pooler"),
        ("read committed", 1999, "statement_timeout is 1999 ms behind a pooler"),
    ],
)
def test_settings_under_which_it_does_not(isolation: str, timeout: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RoleSettings(isolation, timeout).check_engine_can_work()
