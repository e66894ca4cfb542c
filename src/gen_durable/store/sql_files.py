"""The package's SQL files with the name of a schema filled in, and what they say: own objects, rights of the roles."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from gen_durable.errors import ConfigError
from gen_durable.store.schema import ROLES, Schema, is_safe_name

_ROLE = re.compile(rf"@({'|'.join(ROLES)})\b")
_SQL = files("gen_durable.sql")
_HELPERS: Final = (
    "require_max_elements",
    "session_login",
    "may_read_column",
    "may_change_instances_of_others",
    "ids_of_own_instances",
    "id_of_key",
)
"""Functions with a quoted body that SQL functions call, in the order in which they call each other."""


@dataclass(frozen=True, slots=True)
class SqlFile:
    """An SQL file of the package: its path below `sql/`, and its text with the schema's name filled in."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Migration:
    """The SQL that brings the schema to a version from the one before."""

    version: int
    files: tuple[SqlFile, ...]


def migrations(schema: Schema) -> list[Migration]:
    """All migrations of this library, oldest first.

    The number in a file's name is its version; files with one number are parts of one migration, in the order of names.
    """
    parts: dict[int, list[SqlFile]] = {}
    for file in _read_folder("migrations", schema):
        parts.setdefault(int(_name_without_suffix(file).partition("_")[0]), []).append(file)
    return [Migration(version, tuple(files)) for version, files in sorted(parts.items())]


def functions(schema: Schema) -> list[SqlFile]:
    """The files of all functions, which each migration installs again with `create or replace`.

    Helpers come first, most of them without a quoted body: the others call them, and the body of a SQL function is
    parsed when a client runs the printed script.
    """
    files = _read_folder("functions", schema)

    def place(file: SqlFile) -> int:
        name = _name_without_suffix(file)
        if "$$" not in file.text:
            return 0
        return 1 + (_HELPERS.index(name) if name in _HELPERS else len(_HELPERS))

    return sorted(files, key=place)


def views(schema: Schema) -> list[SqlFile]:
    """The files of all views, which each migration installs again with `create or replace`."""
    return _read_folder("views", schema)


def checks(schema: Schema) -> list[tuple[str, str]]:
    """The doctor's queries by name; each returns the rows that break an invariant."""
    return [(_name_without_suffix(file), file.text) for file in _read_folder("checks", schema)]


@dataclass(frozen=True, slots=True)
class OwnObjects:
    """The names of the objects that the package's SQL files create."""

    tables: list[str]
    views: list[str]
    types: list[str]
    functions: list[str]
    indexes: list[str]


def own_objects(schema: Schema) -> OwnObjects:
    """The objects of this version, by kind."""
    files = [*_read_folder("migrations", schema), *views(schema), *functions(schema)]
    text = "\n".join(file.text for file in files)

    def created(kind: str) -> list[str]:
        return sorted(set(re.findall(rf'^create (?:or replace )?{kind} "{schema.name}"\.(\w+)', text, re.MULTILINE)))

    index = re.compile(r"create (?:unique )?index (?:concurrently )?(?:if not exists )?(\w+)")
    indexes = sorted(set(index.findall("\n".join([text, metadata_index_script(schema), live_index_script(schema)]))))
    return OwnObjects(created("table"), created("view"), created("type"), created("function"), indexes)


def metadata_index_script(schema: Schema) -> str:
    """The statement that creates the index on metadata. Run it outside a transaction."""
    return schema.render(_SQL.joinpath("metadata_index.sql").read_text("utf-8"))


def live_index_script(schema: Schema) -> str:
    """The statement that creates the index on the live instances of a login. Run it outside a transaction."""
    return schema.render(_SQL.joinpath("live_index.sql").read_text("utf-8"))


def roles_script(schema: Schema, prefix: str) -> str:
    """The SQL that creates PREFIX_owner, _worker and the others of `ROLES`, and grants them their rights."""
    if not is_safe_name(prefix):
        raise ConfigError(
            f"the prefix of roles must be 1 to 48 characters out of a-z 0-9 _, not begin with a digit or pg_, "
            f"got {prefix!r}"
        )
    return _render_with_roles("roles.sql", schema, prefix)


def roles_check_query(schema: Schema, prefix: str) -> str:
    """The query that returns what differs from `roles_script`, one text per row."""
    return _render_with_roles("roles_check.sql", schema, prefix)


def owner_members_query(schema: Schema, prefix: str) -> str:
    """The query that returns other logins with the rights of the owner, one text per row."""
    return _render_with_roles("owner_members.sql", schema, prefix)


def _render_with_roles(file: str, schema: Schema, prefix: str) -> str:
    ours = own_objects(schema)
    sql = _SQL.joinpath(file).read_text("utf-8").replace("@prefix", prefix)
    sql = sql.replace("\n@foreign_objects\n", "\n" + _SQL.joinpath("foreign_objects.sql").read_text("utf-8"))
    sql = sql.replace("@relations", _sql_array([*ours.tables, *ours.views]))
    sql = sql.replace("@types", _sql_array(ours.types)).replace("@indexes", _sql_array(ours.indexes))
    sql = sql.replace("@functions", _sql_array(ours.functions))
    sql = sql.replace("@granted", _sql_array([f"{role}.{name}" for role, name in sorted(granted_functions())]))
    sql = sql.replace("@payloads", _sql_array(columns_hidden_from_viewers()))
    return schema.render(_ROLE.sub(lambda role: f"{prefix}_{role[1]}", sql))


def granted_functions() -> set[tuple[str, str]]:
    """Which role may call which function: (role, function), from the lists in roles.sql, each of earlier ones."""
    lists: dict[str, set[str]] = {}
    sql = _SQL.joinpath("roles.sql").read_text("utf-8")
    for name, value in re.findall(r"^  (\w+) constant text\[\] := (.*?);", sql, re.MULTILINE | re.DOTALL):
        lists[name] = set(re.findall(r"'(\w+)'", value))
        for earlier in set(re.findall(r"\w+", re.sub(r"'[^']*'", "", value))) & (lists.keys() - {name}):
            lists[name] |= lists[earlier]
    return {(role, function) for role in ROLES if role in lists for function in lists[role]}


def columns_hidden_from_viewers() -> list[str]:
    """The columns that viewers cannot read: TABLE.COLUMN, from the list in roles.sql."""
    sql = _SQL.joinpath("roles.sql").read_text("utf-8")
    (listed,) = re.findall(r"^  payloads constant text\[\] := (.*?);", sql, re.MULTILINE | re.DOTALL)
    return re.findall(r"'([\w.]+)'", listed)


def _sql_array(names: list[str]) -> str:
    """An array of names of ours, which need no escapes."""
    return f"array[{', '.join(repr(name) for name in names)}]::text[]"


def _read_folder(folder: str, schema: Schema) -> list[SqlFile]:
    """The SQL files of a folder, by name."""
    return [
        SqlFile(f"{folder}/{file.name}", schema.render(file.read_text("utf-8")))
        for file in sorted(_SQL.joinpath(folder).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".sql")
    ]


def _name_without_suffix(file: SqlFile) -> str:
    return file.path.rpartition("/")[2].removesuffix(".sql")
