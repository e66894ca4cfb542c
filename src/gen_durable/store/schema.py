"""The Postgres schema of the library, and its SQL files with the name of the schema filled in.

The name is checked against a narrow pattern and quoted; no other value is ever inserted into SQL text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from gen_durable.errors import ConfigError

DEFAULT_SCHEMA: Final = "gen_durable"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_MARK = re.compile(r"@schema\b")
_ROLE = re.compile(r"@(owner|worker|client|viewer|admin)\b")
_SQL = files("gen_durable.sql")


@dataclass(frozen=True, slots=True)
class Schema:
    """The checked name of a schema."""

    name: str = DEFAULT_SCHEMA

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or _NAME.fullmatch(self.name) is None or self.name.startswith("pg_"):
            raise ConfigError(
                f"schema must be 1 to 48 characters out of a-z 0-9 _, not begin with a digit or pg_, got {self.name!r}"
            )

    @property
    def channel(self) -> str:
        """The NOTIFY channel of wake-ups."""
        return f"{self.name}_wake"

    @property
    def metadata_index(self) -> str:
        """The statement that creates the index of metadata; run it outside a transaction."""
        return self.render(_SQL.joinpath("metadata_index.sql").read_text("utf-8"))

    def roles(self, prefix: str) -> str:
        """The statement that creates PREFIX_owner, _worker, _client, _viewer and _admin, and grants their rights."""
        if _NAME.fullmatch(prefix) is None or prefix.startswith("pg_"):
            raise ConfigError(
                f"the prefix of roles must be 1 to 48 characters out of a-z 0-9 _, not begin with a digit or pg_, "
                f"got {prefix!r}"
            )
        sql = _SQL.joinpath("roles.sql").read_text("utf-8").replace("@prefix", prefix)
        return self.render(_ROLE.sub(lambda role: f"{prefix}_{role[1]}", sql))

    def render(self, sql: str) -> str:
        """SQL with `@schema` replaced by the quoted name."""
        return _MARK.sub(f'"{self.name}"', sql)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema's history: a number, and the statements that bring it about."""

    version: int
    name: str
    sql: str


def migrations(schema: Schema) -> list[Migration]:
    """All migrations of this library, oldest first."""
    found: list[Migration] = []
    for file in sorted(_SQL.joinpath("migrations").iterdir(), key=lambda f: f.name):
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, schema.render(file.read_text("utf-8"))))
    return found


def functions(schema: Schema) -> str:
    """Every function, to be installed (again) with each migration: `create or replace`, callers first or last alike."""
    texts = [
        file.read_text("utf-8")
        for file in sorted(_SQL.joinpath("functions").iterdir(), key=lambda f: (f.name != "may_read.sql", f.name))
        if file.name.endswith(".sql")
    ]
    return schema.render("\n".join(texts))


def checks(schema: Schema) -> list[tuple[str, str]]:
    """The doctor's queries by name; each returns the rows that break an invariant."""
    return [
        (file.name.removesuffix(".sql"), schema.render(file.read_text("utf-8")))
        for file in sorted(_SQL.joinpath("checks").iterdir(), key=lambda f: f.name)
        if file.name.endswith(".sql")
    ]
