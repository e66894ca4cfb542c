"""The settings that the engine relies on, whatever the role, the database or the DSN say.

A direct connection sets them when it is opened. Behind a transaction pooler a session belongs to every client of the
pooler, so nothing may be set there: transactions state what they can, and a role whose settings would lose wake-ups or
stall commits is refused when a `Durable` opens.

Not set: `search_path`, time zone and formats. Statements and functions qualify every name and exchange ISO times and
binary values, and users' statements in transactional steps keep the settings of their role. Guarded by
tests/flows/test_hostile_settings.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gen_durable.errors import ConfigError
from gen_durable.store.statements import Statement

_TIMEOUTS: Final = {
    "statement_timeout": 0,  # the first version that has it; 0 means any
    "lock_timeout": 0,
    "idle_in_transaction_session_timeout": 0,
    "idle_session_timeout": 14,
    "transaction_timeout": 17,
}
_VALUES: Final = {
    "default_transaction_isolation": "'read committed'",  # second looks need a snapshot of their own
    "default_transaction_deferrable": "off",
    "jit": "off",
    "extra_float_digits": "1",  # floats that functions put into JSON keep all their digits
    "standard_conforming_strings": "on",  # function bodies are parsed in the session that calls them
    "array_nulls": "on",
    "transform_null_equals": "off",
}
# flush waits up to a second for a locked row: its lock_timeout must come before a statement_timeout.
LEAST_STATEMENT_TIMEOUT_MS: Final = 2000
READ_COMMITTED: Final = ("read committed", "read uncommitted")  # Postgres treats both alike


def session_settings_script(major_version: int) -> str:
    """The script that a direct connection runs when it is opened."""
    timeouts = (f"set {name} = 0" for name, since in _TIMEOUTS.items() if major_version >= since)
    return ";".join([*timeouts, *(f"set {name} = {value}" for name, value in _VALUES.items())])


# A server or database that was made read-only, to move it or because its disk is full, stays so; a role's default does
# not keep the engine from writing.
IS_READ_ONLY_ROLE: Final = (
    "select 1 from pg_catalog.pg_settings s where s.name operator(pg_catalog.=) 'default_transaction_read_only' "
    "and s.setting operator(pg_catalog.=) 'on' "
    "and s.source operator(pg_catalog.=) any (array['user', 'database user'])"
)
ALLOW_WRITES: Final = "set default_transaction_read_only = off"


def transaction_settings_script(major_version: int) -> str:
    """The script for a transaction behind a pooler: its settings end with it."""
    return ";".join(f"set local {name} = 0" for name, since in _TIMEOUTS.items() if major_version >= since)


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """What a role's transactions begin with."""

    isolation: str
    statement_timeout_ms: int

    def check_engine_can_work(self) -> None:
        """Raises `ConfigError` if the engine cannot work under these settings, where it cannot change them."""
        advice = "Change it for the role (alter role ... set), or connect without the pooler."
        if self.isolation not in READ_COMMITTED:
            raise ConfigError(
                f"default_transaction_isolation is {self.isolation!r} behind a pooler. The engine needs 'read "
                f"committed': in a stricter level wake-ups are lost. {advice}"
            )
        if 0 < self.statement_timeout_ms < LEAST_STATEMENT_TIMEOUT_MS:
            raise ConfigError(
                f"statement_timeout is {self.statement_timeout_ms} ms behind a pooler. The engine needs at least "
                f"{LEAST_STATEMENT_TIMEOUT_MS} ms: a commit waits up to a second for a locked row. {advice}"
            )


def read_role_settings_statement() -> Statement[RoleSettings]:
    """The settings of a connection on which nothing was set."""
    text = (
        "select pg_catalog.current_setting('default_transaction_isolation'), "
        "(select s.setting::pg_catalog.int4 from pg_catalog.pg_settings s "
        "where s.name operator(pg_catalog.=) 'statement_timeout')"
    )
    return Statement(text, (), lambda rows: RoleSettings(*rows[0]))
