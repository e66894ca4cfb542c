"""Reads which version of gen_durable a schema holds, and refuses schemas that it must not touch.

`migrate` and `check_schema_version` call it first. It only reads: the migrations table, and Postgres' catalogs, which
every login may read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gen_durable.errors import SchemaConflict
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.pg.pool import Pool
from gen_durable.store.schema import Schema
from gen_durable.store.sql_files import migrations
from gen_durable.store.statements import Statement
from gen_durable.store.types import Row

SHOWN_OBJECTS: Final = 3


@dataclass(frozen=True, slots=True)
class InstalledSchema:
    """The content of a schema.

    `version` is 0 if no version of gen_durable is installed; `is_unreleased` is set for the layout of an unreleased
    version; `foreign_objects` names some objects of a schema in which gen_durable is not installed.
    """

    version: int = 0
    is_unreleased: bool = False
    foreign_objects: tuple[str, ...] = ()

    def check_empty_or_ours(self, schema: Schema) -> None:
        """Raise `SchemaConflict` unless the schema is empty or has gen_durable's layout."""
        if self.is_unreleased:
            raise SchemaConflict(
                f"Schema {schema.name!r} was created by an unreleased version of gen_durable, which this version "
                "cannot use or convert. Nothing was changed. Use another schema (--schema, Durable(schema=...)), or "
                f'delete its data: drop schema "{schema.name}" cascade'
            )
        if self.foreign_objects:
            shown = ", ".join(self.foreign_objects[:SHOWN_OBJECTS])
            more = ", ..." if len(self.foreign_objects) > SHOWN_OBJECTS else ""
            raise SchemaConflict(
                f"Schema {schema.name!r} already holds objects that are not gen_durable's ({shown}{more}). Nothing was "
                "changed. Use another schema (--schema, Durable(schema=...)), or empty this one"
            )


async def read_installed_schema(connection: PersistentConnection | Pool, schema: Schema) -> InstalledSchema:
    """What the schema holds."""
    has_migrations, has_old_table, objects = await connection.run(Statement(_CONTENT, (schema.name,), _first_row))
    if has_migrations:
        query = schema.render("select min(version), max(version) from @schema.migrations")
        oldest, newest = await connection.run(Statement(query, (), _first_row))
        if oldest is not None:
            return InstalledSchema(newest, is_unreleased=oldest < migrations(schema)[0].version)
    if has_old_table:
        return InstalledSchema(is_unreleased=True)
    return InstalledSchema(foreign_objects=tuple(objects))


async def read_role_prefix(connection: PersistentConnection | Pool, schema: Schema) -> str | None:
    """The prefix of the roles of an installed schema, or None if it has none."""
    (prefix,) = await connection.run(Statement(schema.render("select roles from @schema.installation"), (), _first_row))
    return None if prefix is None else str(prefix)


def _first_row(rows: Sequence[Row]) -> Sequence[Any]:
    return rows[0]


# One statement, so one snapshot: if another session commits the first migration between two, its objects would be
# taken for foreign ones (tests/store/test_migrate.py).
#
# Other tools have a table called migrations, too: its columns show whether it is gen_durable's. Every object in a
# schema depends on it, whatever its kind. Default privileges and publications depend on it in another way
# (deptype 'a'), and do not count.
_CONTENT: Final = f"""
select count(*) filter (where t.relname = 'migrations' and a.attname in ('version', 'applied_at')) = 2,
       count(*) filter (where t.relname = 'gen_durable') > 0,
       array(
         select pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
         from pg_catalog.pg_depend d
         join pg_catalog.pg_namespace n on n.oid = d.refobjid
         where d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass and n.nspname = $1 and d.deptype = 'n'
         order by d.objid limit {SHOWN_OBJECTS + 1}
       )
from pg_catalog.pg_class t
join pg_catalog.pg_namespace n on n.oid = t.relnamespace
join pg_catalog.pg_attribute a on a.attrelid = t.oid and not a.attisdropped
where n.nspname = $1 and t.relname in ('migrations', 'gen_durable') and t.relkind in ('r', 'p')
"""  # noqa: S608  # a constant
