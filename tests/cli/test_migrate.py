"""`gen-durable migrate`: applies or prints the missing migrations, and refuses schemas that it must not touch."""

from __future__ import annotations

from typing import Any

import asyncpg
from tests.support.old_layout import old_layout

from gen_durable.pg.migrate import library_schema_version
from gen_durable.store.schema import Schema


async def execute(dsn: str, sql: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


async def test_twice_applies_once(run: Any, dsn: str, bare_schema: str) -> None:
    first = run("migrate", "--dsn", dsn, "--schema", bare_schema)
    second = run("migrate", "--dsn", dsn, "--schema", bare_schema)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert f"schema {bare_schema}: applied version {library_schema_version(Schema(bare_schema))}" in first.stdout
    assert f"schema {bare_schema}: nothing to do" in second.stdout


async def test_sql_prints_and_touches_nothing(run: Any, dsn: str, bare_schema: str) -> None:
    printed = run("migrate", "--dsn", dsn, "--schema", bare_schema, "--sql")
    assert printed.returncode == 0
    assert run("doctor", "--dsn", dsn, "--schema", bare_schema).returncode == 2


async def test_the_printed_sql_is_all_that_it_takes(run: Any, dsn: str, bare_schema: str) -> None:
    printed = run("migrate", "--dsn", dsn, "--schema", bare_schema, "--sql")
    await execute(dsn, printed.stdout)
    after = run("migrate", "--dsn", dsn, "--schema", bare_schema)
    assert "nothing to do" in after.stdout
    assert run("doctor", "--dsn", dsn, "--schema", bare_schema).returncode == 0


async def test_sql_of_a_migrated_schema_is_empty(run: Any, dsn: str, schema: str) -> None:
    printed = run("migrate", "--dsn", dsn, "--schema", schema, "--sql")
    assert (printed.returncode, printed.stdout) == (0, "")
    assert "nothing to run" in printed.stderr


async def test_sql_without_a_database_prints_everything(run: Any, dsn: str, bare_schema: str) -> None:
    reachable = run("migrate", "--dsn", dsn, "--schema", bare_schema, "--sql").stdout
    unreachable = run("migrate", "--dsn", "postgresql://127.0.0.1:1/x", "--schema", bare_schema, "--sql")
    none = run("migrate", "--schema", bare_schema, "--sql")
    assert reachable
    assert unreachable.stdout == none.stdout == reachable
    assert "printing all of it" in unreachable.stderr


async def test_a_newer_schema_is_refused(run: Any, dsn: str, schema: str) -> None:
    await execute(dsn, f"insert into {schema}.migrations (version) values (99999)")
    for arguments in ([], ["--sql"]):
        done = run("migrate", "--dsn", dsn, "--schema", schema, *arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        assert "is at version 99999" in done.stderr


async def test_a_schema_with_other_objects_is_refused(run: Any, dsn: str, bare_schema: str) -> None:
    await execute(dsn, f"create schema {bare_schema}; create table {bare_schema}.customers (id int)")
    for arguments in ([], ["--sql"]):
        done = run("migrate", "--dsn", dsn, "--schema", bare_schema, *arguments)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"(table {bare_schema}.customers)" in done.stderr
        assert "Use another schema" in done.stderr


async def test_the_layout_of_an_unreleased_version_is_refused(run: Any, dsn: str, bare_schema: str) -> None:
    await execute(dsn, old_layout(bare_schema))
    for arguments in (["migrate"], ["migrate", "--sql"], ["doctor"]):
        done = run(*arguments, "--dsn", dsn, "--schema", bare_schema)
        assert (done.returncode, done.stdout) == (2, "")
        assert "unreleased version" in done.stderr
        assert f'drop schema "{bare_schema}" cascade' in done.stderr
