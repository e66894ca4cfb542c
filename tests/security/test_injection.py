"""Identifiers come from the configuration, checked and quoted; everything else is bound."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from tests.support.canaries import Secret, echo
from tests.support.engine import Opening
from typer.testing import CliRunner

from gen_durable import Durable, SyncDurable
from gen_durable.cli.app import app as cli
from gen_durable.errors import ConfigError, InputError
from gen_durable.store.schema import Schema

SCHEMAS = [
    'x"; drop schema public cascade; --',
    "x'; select 1; --",
    "public.x",
    "",
    " x",
    "x ",
    "x\n",
    "x\0",
    "x;y",
    "X",
    "1x",
    "pg_catalog",
    "pg_x",
    "\N{LATIN SMALL LETTER A WITH DIAERESIS}",
    "\N{FULLWIDTH LATIN SMALL LETTER A}",
    "a" * 49,
    "a" * 10_000,
    "x/*",
    "$$",
    "@schema",
    "{s}",
    "%s",
]


@pytest.mark.parametrize("name", SCHEMAS)
def test_hostile_schemas_are_refused_before_anything_is_connected(name: str) -> None:
    nowhere = "postgresql://127.0.0.1:1/none"
    for make in (Schema, lambda s: Durable(nowhere, schema=s), lambda s: SyncDurable(nowhere, schema=s)):
        with pytest.raises(ConfigError, match="schema must be"):
            make(name)
    if "\0" in name:
        return
    for command in (["migrate"], ["migrate", "--sql"], ["doctor"], ["ls"], ["show", "1"], ["limits"]):
        found = CliRunner().invoke(cli, [*command, "--dsn", nowhere, f"--schema={name}"])
        assert found.exit_code == 2, found.output
        assert "schema must be" in found.output


@pytest.mark.parametrize("name", ["select", "user", "table", "end", "_", "a" * 48])
def test_reserved_words_are_quoted(dsn: str, name: str) -> None:
    """Whatever is let through works: names are quoted wherever they stand."""

    async def life() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.execute(f'drop schema if exists "{name}" cascade')
        try:
            async with Durable(dsn, schema=name, migrate=True) as app:
                handle = await app.insert(echo, Secret("x"), unique_key="k")
                assert (await app.get("k")).id == handle.id
                assert await app.cancel(handle.id)
                assert len((await app.list()).instances) == 1
        finally:
            await connection.execute(f'drop schema if exists "{name}" cascade')
            await connection.close()

    asyncio.run(life())


HOSTILE = [
    "' or '1'='1",
    "'; drop table gen_durable; --",
    '" or 1=1 --',
    "x') or 1=1 --",
    "$1",
    "%s",
    "%(x)s",
    "{}",
    "$text$ or true $text$",
    "\\' or 1=1 --",
    "1; select pg_sleep(10)",
    "' union select null --",
    "null",
    "\N{FULLWIDTH APOSTROPHE} or 1=1",
    "x' and (select 1 from pg_sleep(10)) is not null --",
]
OPTIONS = ["--queue", "--machine", "--step", "--partition-key", "--key", "--metadata"]
SHORT = ("--queue", "--metadata")  # a text and a JSON object


@pytest.mark.parametrize(
    "option", [pytest.param(option, marks=[] if option in SHORT else pytest.mark.long) for option in OPTIONS]
)
def test_hostile_filters_of_the_command_line(dsn: str, schema: str, option: str) -> None:
    """A filter is a value: nothing fits it, nothing is dropped, and nothing sleeps."""

    async def given() -> None:
        async with Durable(dsn, schema=schema) as app:
            await app.insert(echo, Secret("x"), metadata={"tenant": "acme"}, partition_key="p")

    asyncio.run(given())
    for text in HOSTILE:
        value = f"tenant={text}" if option == "--metadata" else text
        for command in ("ls", "count"):
            found = CliRunner().invoke(cli, [command, option, value, "--json", "--dsn", dsn, "--schema", schema])
            if found.exit_code == 2:
                assert "must be" in found.output, found.output  # refused by its form, before the database
                continue
            assert found.exit_code == 0, (text, found.output)
            assert '"id"' not in found.output
            assert '"value": 1' not in found.output
    there = CliRunner().invoke(cli, ["count", "--json", "--dsn", dsn, "--schema", schema])
    assert '"value": 1' in there.output


async def test_hostile_filters_of_the_client(engine: Opening) -> None:
    async with engine() as e:
        await e.app.insert(echo, Secret("x"), metadata={"tenant": "acme"}, unique_key="k")
        for text in HOSTILE:
            for filters in (
                {"partition_key": text},
                {"unique_key": text},
                {"metadata": {text: text}},
                {"metadata": {"tenant": text}},
                {"queue": text},
                {"machine": text},
                {"step": text},
            ):
                try:
                    assert (await e.app.list(**filters)).instances == ()  # type: ignore[arg-type]
                    assert (await e.app.count(**filters)).value == 0  # type: ignore[arg-type]
                except InputError:
                    assert "queue" in filters or "machine" in filters or "step" in filters
            with pytest.raises(InputError):
                await e.app.list(status=[text])  # type: ignore[list-item]
            with pytest.raises(InputError):
                await e.app.list(after=text)
        # Past the client too: the functions take what they are given as values.
        for text in HOSTILE:
            wanted = '{"queue": "q"}'
            rows = await e.rows.fetch(
                "select ids from @.list(jsonb_set($1, '{queue}', to_jsonb($2::text)), null, 10)", wanted, text
            )
            assert rows[0][0] is None
            with pytest.raises(asyncpg.PostgresError):
                await e.rows.fetch(
                    "select ids from @.list(jsonb_build_object('status', array[$1::text]), null, 10)", text
                )


async def test_hostile_keys_and_names_are_stored_as_they_are(engine: Opening) -> None:
    async with engine() as e:
        for text in HOSTILE:
            handle = await e.app.insert(
                echo, Secret(text), unique_key=text, partition_key=text, metadata={text: text}, group=("g", text)
            )
            one = await e.app.get(text)
            assert (one.id, one.partition_key, one.metadata) == (handle.id, text, {text: text})
            assert await e.app.cancel(text, reason=text)
            assert (await e.app.get(handle.id)).last_error == text
