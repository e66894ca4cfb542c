"""The Postgres schema of an installation, whose name is filled into SQL.

The name is checked against a narrow pattern and quoted once, and every object in the package's SQL files is qualified
with it. Names of schemas and roles are the only values that are ever put into SQL text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gen_durable.errors import ConfigError

DEFAULT_SCHEMA: Final = "gen_durable"
ROLES: Final = ("owner", "worker", "client", "producer", "reader", "viewer", "admin")
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_MARK = re.compile(r"@schema\b")


def is_safe_name(name: str) -> bool:
    """Whether a name of a schema, or the prefix of roles, needs no care in SQL."""
    return _NAME.fullmatch(name) is not None and not name.startswith("pg_")


@dataclass(frozen=True, slots=True)
class Schema:
    """The name of a schema. Raises `ConfigError` for a name that would need care in SQL."""

    name: str = DEFAULT_SCHEMA

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not is_safe_name(self.name):
            raise ConfigError(
                f"schema must be 1 to 48 characters out of a-z 0-9 _, not begin with a digit or pg_, got {self.name!r}"
            )

    @property
    def channel(self) -> str:
        """The NOTIFY channel for wake-ups."""
        return f"{self.name}_wake"

    def render(self, sql: str) -> str:
        """SQL with `@schema` replaced by the quoted name."""
        return _MARK.sub(f'"{self.name}"', sql)
