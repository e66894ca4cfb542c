"""Section 9, the schema: columns, types, defaults, the generated guard and the indexes, as the database has them."""

from __future__ import annotations

import re

import asyncpg
import pytest
from tests.support.spec import Engine, Opening, go

from gen_durable import Durable
from gen_durable.errors import SchemaTooNew
from gen_durable.pg.migrate import migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema

INSTANCE = {
    # name: (type, may be null, default)
    "id": ("bigint", False, None),
    "fsm": ("text", False, None),
    "fsm_version": ("integer", False, "1"),
    "step": ("text", False, None),
    "status": ("durable_status", False, "'runnable'"),
    "state": ("jsonb", False, "'{}'"),
    "result": ("jsonb", True, None),
    "awaits": ("text[]", True, None),
    "queue": ("text", False, "'default'"),
    "priority": ("smallint", False, "0"),
    "partition_key": ("text", True, None),
    "eligible_at": ("timestamp with time zone", False, "now()"),
    "attempt": ("bigint", False, "0"),  # wider than the seed: an instance that wakes often overflows an integer
    "last_error": ("text", True, None),
    "locked_by": ("text", True, None),
    "lease_expires_at": ("timestamp with time zone", True, None),
    "parent_id": ("bigint", True, None),
    "children_pending": ("integer", False, "0"),
    "unique_key": ("bytea", True, None),
    "unique_scope": ("durable_status[]", False, "'{}'"),
    "inserted_at": ("timestamp with time zone", False, "now()"),
    "updated_at": ("timestamp with time zone", False, "now()"),
}
ADDED = {
    "claims": ("bigint", False, "0"),
    "seq": ("bigint", False, "0"),
    "crashes": ("integer", False, "0"),
    "await_deadline": ("timestamp with time zone", True, None),
    "started_at": ("timestamp with time zone", True, None),
    "finished_at": ("timestamp with time zone", True, None),
}
SIGNAL = {
    "id": ("bigint", False, None),
    "target_id": ("bigint", False, None),
    "name": ("text", False, None),
    "payload": ("jsonb", True, None),
    "dedup_key": ("text", True, None),
    "inserted_at": ("timestamp with time zone", False, "now()"),
}


async def columns(e: Engine, table: str) -> dict[str, tuple[str, bool, str | None]]:
    """A table's columns: their type, whether they may be null, and the default without its cast."""
    rows = await e.fetch(
        """
        select a.attname, format_type(a.atttypid, a.atttypmod) as type, not a.attnotnull as nullable,
               a.attgenerated = '' as plain, pg_get_expr(d.adbin, d.adrelid) as preset
        from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where a.attrelid = $1::regclass and a.attnum > 0 and not a.attisdropped
        """,
        f'"{e.schema}".{table}',
    )
    return {
        row["attname"]: (
            row["type"].replace(f"{e.schema}.", ""),
            row["nullable"],
            row["preset"].split("::")[0] if row["preset"] is not None and row["plain"] else None,
        )
        for row in rows
    }


async def indexes(e: Engine) -> dict[str, str]:
    """The definition of every index."""
    rows = await e.fetch("select indexname, indexdef from pg_indexes where schemaname = $1", e.schema)
    return {row["indexname"]: row["indexdef"].replace(f"{e.schema}.", "").replace('"', "") for row in rows}


async def test_the_statuses_of_an_instance(engine: Opening) -> None:
    """The words of the specification in its order, and `cancelled` after them."""
    async with engine() as e:
        rows = await e.fetch(
            "select unnest(enum_range(null::@.durable_status))::text as status",
        )
        assert [row["status"] for row in rows] == [
            "runnable",
            "executing",
            "awaiting_signal",
            "awaiting_children",
            "done",
            "failed",
            "cancelled",
        ]


async def test_the_columns_of_an_instance(engine: Opening) -> None:
    """Each column that the specification names has its type, its default, and may be null only where it says so."""
    async with engine() as e:
        found = await columns(e, "instances")
        assert {name: found.get(name) for name in INSTANCE} == INSTANCE


async def test_the_columns_that_were_added_to_an_instance(engine: Opening) -> None:
    """The fence, the count of outcomes and of crashes, the deadline of an await, and when the instance ended."""
    async with engine() as e:
        found = await columns(e, "instances")
        assert {name: found.get(name) for name in ADDED} == ADDED


async def test_the_columns_of_a_signal(engine: Opening) -> None:
    """The inbox's columns; a payload is null in a signal that carries none, or whose dedup key alone is kept."""
    async with engine() as e:
        found = await columns(e, "signals")
        assert {name: found.get(name) for name in SIGNAL} == SIGNAL


async def test_ids_are_given_by_the_database(engine: Opening) -> None:
    """Both ids are identities that are always generated, and primary keys."""
    async with engine() as e:
        for table in ("instances", "signals"):
            (row,) = await e.fetch(
                "select a.attidentity, i.indisprimary from pg_attribute a "
                "join pg_index i on i.indrelid = a.attrelid and i.indkey::text = a.attnum::text and i.indisprimary "
                "where a.attrelid = $1::regclass and a.attname = 'id'",
                f'"{e.schema}".{table}',
            )
            assert (row["attidentity"], row["indisprimary"]) == (b"a", True)


async def test_a_bare_row_is_a_runnable_instance(engine: Opening) -> None:
    """With the machine and the step alone the defaults make a row that a worker picks."""
    async with engine() as e:
        (row,) = await e.fetch("insert into @.instances (fsm, step) values ('Play', 'a') returning *")
        assert (row["status"], row["state"], row["queue"], row["priority"]) == ("runnable", "{}", "default", 0)
        assert (row["attempt"], row["children_pending"], row["fsm_version"]) == (0, 0, 1)
        assert row["eligible_at"] == row["inserted_at"] == row["updated_at"]
        assert [claim.id for claim in await e.claim()] == [row["id"]]


async def test_the_guard_is_generated_from_key_scope_and_status(engine: Opening) -> None:
    """The guard is stored, cannot be written, and is the key exactly while the status is in the scope."""
    async with engine() as e:
        cases = [
            ("runnable", b"k1", ["runnable"], b"k1"),
            ("done", b"k2", ["runnable"], None),
            ("done", b"k3", ["runnable", "done"], b"k3"),
            ("runnable", None, ["runnable"], None),
            ("runnable", b"k4", [], None),
        ]
        for status, key, scope, expected in cases:
            (row,) = await e.fetch(
                "insert into @.instances (fsm, step, status, finished_at, unique_key, unique_scope) "
                "values ('Play', 'a', $1::text::@.durable_status, case $1 when 'done' then now() end, $2, $3) "
                "returning unique_guard",
                status,
                key,
                scope,
            )
            assert row["unique_guard"] == expected
        with pytest.raises(asyncpg.GeneratedAlwaysError):
            await e.fetch("update @.instances set unique_guard = 'x'")
        (kind,) = await e.fetch(
            "select attgenerated from pg_attribute where attrelid = $1::regclass and attname = 'unique_guard'",
            f'"{e.schema}".instances',
        )
        assert kind["attgenerated"] == b"s"


INDEXES = {
    "instances_pick": r"\(queue, priority, .*\) WHERE",
    "instances_lease": r"\(lease_expires_at\) WHERE \(status = 'executing'",
    "instances_unique": r"^CREATE UNIQUE INDEX .*\(unique_guard\) WHERE \(unique_guard IS NOT NULL\)",
    "instances_parent": r"\(parent_id.*\) WHERE \(parent_id IS NOT NULL\)",
    "instances_partition": r"^CREATE UNIQUE INDEX .*\(partition_key\) WHERE .*executing.*partition_key IS NOT NULL",
    # Rows with a keep of their own are in indexes of their own, so that retention does not walk over them.
    "instances_finished": r"\(finished_at\) WHERE \(\(finished_at IS NOT NULL\) AND \(keep_seconds IS NULL\)\)",
    "instances_key": r"\(unique_key, id\) WHERE \(unique_key IS NOT NULL\)",
}


async def test_the_indexes_of_instances(engine: Opening) -> None:
    """Each serves one statement and holds only the rows which that statement looks for."""
    async with engine() as e:
        found = await indexes(e)
        assert {name for name, pattern in INDEXES.items() if not re.search(pattern, found.get(name, ""))} == set()


async def test_only_rows_that_can_be_picked_are_in_the_pick_index(engine: Opening) -> None:
    """Its column is when a row falls due, and null for whatever waits for something else than time."""
    async with engine() as e:
        assert "WHERE (due_at IS NOT NULL)" in (await indexes(e))["instances_pick"]
        rows = await e.fetch(
            """
            insert into @.instances
              (fsm, step, status, awaits, await_deadline, locked_by, lease_expires_at, finished_at)
            select 'Play', 'a', s, array['go'], d, case when s = 'executing' then 'w' end,
                   case when s = 'executing' then now() end, case when s >= 'done' then now() end
            from unnest(enum_range(null::@.durable_status)) as s, unnest(array[null, now()]) as d
            returning status, await_deadline is not null as deadline, due_at is not null as due
            """
        )
        due = {(row["status"], row["deadline"]) for row in rows if row["due"]}
        assert due == {("runnable", False), ("runnable", True), ("awaiting_signal", True), ("awaiting_children", True)}
        await e.fetch("delete from @.instances")


async def test_the_inbox_is_found_by_its_instance(engine: Opening) -> None:
    """Signals are indexed by their target, and a dedup key is unique per target."""
    async with engine() as e:
        found = [definition for definition in (await indexes(e)).values() if " ON signals " in definition]
        assert any(re.search(r"^CREATE INDEX .*\(target_id", definition) for definition in found)
        assert any(re.search(r"^CREATE UNIQUE INDEX .*\(target_id, dedup_key\)", definition) for definition in found)


async def test_signals_go_with_their_instance(engine: Opening) -> None:
    """A signal is deleted with its target, whoever deletes it."""
    async with engine() as e:
        handle = await e.start()
        await handle.signal(go, {})
        await e.fetch("delete from @.instances where id = $1", handle.id)
        assert await e.fetch("select * from @.signals") == []


async def test_everything_is_in_one_schema(dsn: str, schema: str) -> None:
    """The library needs no search path and leaves nothing in `public`."""
    connection = await asyncpg.connect(dsn)
    try:
        names = await connection.fetch(
            "select relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where nspname = 'public' "
            "and relname similar to '(instances|signals)%'"
        )
        paths = await connection.fetch(
            "select proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace where nspname = $1 "
            "and coalesce(array_to_string(proconfig, ','), '') not like '%search_path%' "
            "and prosqlbody is null",  # a body in the SQL standard's form has its names resolved already
            schema,
        )
    finally:
        await connection.close()
    assert names == []
    assert paths == []


async def test_the_schema_version_is_recorded_and_only_missing_steps_are_applied(dsn: str, bare_schema: str) -> None:
    """The first migration applies everything, the second nothing, and a newer database is refused."""
    link, schema = PersistentConnection(ConnectionTarget(dsn)), Schema(bare_schema)
    try:
        applied = await migrate(link, schema)
        assert applied == sorted(applied) != []
        assert await migrate(link, schema) == []
        await link.run_script(f'insert into "{bare_schema}".migrations (version) values (100000)')
        with pytest.raises(SchemaTooNew):
            await migrate(link, schema)
        async with Durable(dsn, schema=bare_schema):
            pass  # an old library still works on a newer schema, it only does not migrate it
    finally:
        await link.close()
