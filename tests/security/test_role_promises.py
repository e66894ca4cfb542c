"""Single promises of docs/howto/roles.md, each by a real login."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.canaries import Crowd, Secret, leaf, told
from tests.support.engine import BRIEF, opened
from tests.support.machine import M
from tests.support.roles import PASSWORD, login_dsn, logins
from typer.testing import CliRunner

from gen_durable import Durable, Finished, Start
from gen_durable.cli.app import app as cli
from gen_durable.errors import DatabaseRefused, Duplicate, NotFound, QuotaExceeded


@pytest.fixture
def dsns(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, schema) as found:
        yield found


async def command(dsn: str, schema: str, *words: str, code: int = 0) -> str:
    done = await asyncio.to_thread(CliRunner().invoke, cli, [*words, "--dsn", dsn, "--schema", schema])
    assert done.exit_code == code, done.output
    return done.output


async def test_services_that_share_a_login_share_their_instances(schema: str, dsns: dict[str, str]) -> None:
    """Another process with the same login gets, signals and cancels; one with another login does not."""
    async with (
        opened(dsns["producer"], schema) as first,
        opened(dsns["producer"], schema) as second,
        opened(dsns["producer2"], schema) as other,
    ):
        one = await first.app.insert(M.s, {"n": 1}, delay=3600)
        assert (await second.app.get(one.id)).state == {"n": 1}
        assert await second.app.signal(one.id, told, Secret("x"))
        with pytest.raises(NotFound):
            await other.app.get(one.id)
        assert await second.app.cancel(one.id)


async def test_instances_that_workers_start_belong_to_no_client(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """Children of an instance do not exist for the producer that has inserted it."""
    async with opened(dsns["producer"], schema) as mine, opened(dsns["worker"], schema) as e:
        async with e.worker(Crowd(), leaf, **BRIEF):
            crowd = await mine.app.insert(Crowd.spread, 2)
            assert await mine.end(crowd) == Finished(crowd.id, 2)
        with psycopg.connect(dsn) as admin:
            rows = admin.execute(
                f'select id, inserted_by from "{schema}".instances where parent_id is not null'.encode()
            )
            children = rows.fetchall()
        assert [owner for _, owner in children] == [None, None]
        for child, _ in children:
            with pytest.raises(NotFound):
                await mine.app.get(child)
            with pytest.raises(NotFound):
                await mine.app.cancel(child)


async def test_an_insert_reveals_the_holder_of_a_key(schema: str, dsns: dict[str, str]) -> None:
    """That the key is held, and its id; `get` of that id finds nothing."""
    async with opened(dsns["client"], schema) as owner, opened(dsns["producer"], schema) as mine:
        held = await owner.app.insert(M.s, {}, unique_key="key", delay=3600)
        with pytest.raises(Duplicate):
            await mine.app.insert(M.s, {}, unique_key="key")
        found = await mine.app.insert(M.s, {}, unique_key="key", on_conflict="existing")
        assert found.id == held.id
        with pytest.raises(NotFound):
            await mine.app.get(held.id)


async def test_a_function_with_security_definer_gives_no_other_grants(
    dsn: str, schema: str, dsns: dict[str, str]
) -> None:
    """The grants of the session's login count, not those of the owner of the function."""
    await command(dsn, schema, "grant", "producer", f"{schema}_l_producer", "--machine", "Checkout")
    with psycopg.connect(dsn, autocommit=True) as admin:
        for machine in ("Checkout", "Refund"):
            admin.execute(
                f"create function public.{schema}_{machine}() returns bigint language sql security definer "
                f"as $$ select \"{schema}\".insert('{machine}', 's') $$".encode()
            )
        try:
            with psycopg.connect(dsns["producer"], autocommit=True) as own:
                assert own.execute(f"select public.{schema}_checkout()".encode()).fetchone() is not None
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not insert machine Refund"):
                    own.execute(f"select public.{schema}_refund()".encode())
        finally:
            admin.execute(f"drop function public.{schema}_checkout(), public.{schema}_refund()".encode())


async def test_what_does_not_count_against_a_quota(dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """A signal to an existing instance and a `debounce` that moves one; retried instances may exceed the quota."""
    await command(dsn, schema, "grant", "producer", f"{schema}_l_producer", "--max-live", "2")
    async with Durable(dsns["producer"], schema=schema) as mine, Durable(dsns["admin"], schema=schema) as admin:
        ended = await mine.insert(M.s, {}, delay=3600)
        await mine.cancel(ended.id)
        start = Start(M.s, {}, unique_key="key", delay=3600)
        await mine.debounce(M.s, {}, unique_key="moved", delay=3600)
        await mine.insert(M.s, {}, unique_key="key", delay=3600)
        for _ in range(3):
            await mine.debounce(M.s, {}, unique_key="moved", delay=3600)
            assert await mine.signal("key", told, Secret("x"), or_start=start)
        with pytest.raises(QuotaExceeded):
            await mine.insert(M.s, {})
        await admin.retry(ended.id)
        with psycopg.connect(dsn) as connection:
            live = connection.execute(f'select count(*) from "{schema}".instances where finished_at is null'.encode())
            assert live.fetchone() == (3,)
    assert "1000000" in (
        await command(dsn, schema, "grant", "producer", f"{schema}_l_producer", "--max-live", "1000001", code=2)
    ).replace(",", "").replace("_", "")


async def test_without_roles_functions_run_with_the_rights_of_their_caller(dsn: str, schema: str) -> None:
    """A login that may call `insert` and may not write the tables inserts nothing."""
    name = f"{schema}_plain"
    with psycopg.connect(dsn, autocommit=True) as admin:
        query = "select count(*) from pg_proc where prosecdef and pronamespace = %s::regnamespace"
        assert admin.execute(query, [f'"{schema}"']).fetchone() == (0,)
        admin.execute(f"create role {name} login password '{PASSWORD}'".encode())
        admin.execute(f'grant usage on schema "{schema}" to {name}'.encode())
        try:
            with (
                psycopg.connect(login_dsn(dsn, name)) as plain,
                pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for"),
            ):
                plain.execute(f"select \"{schema}\".insert('m', 's')".encode())
        finally:
            admin.execute(f"drop owned by {name}; drop role {name}".encode())


async def test_a_refused_call_has_its_sqlstate(schema: str, dsns: dict[str, str]) -> None:
    """`DatabaseRefused` for a call that the role may not make."""
    async with Durable(dsns["producer"], schema=schema) as app:
        calls: tuple[Any, ...] = (app.list(), app.count(), app.limits(), app.retry(1), app.delete(1))
        for call in calls:
            with pytest.raises(DatabaseRefused, match="permission denied: this login may not do that"):
                await call
    with psycopg.connect(dsns["producer"]) as own, pytest.raises(psycopg.Error) as raw:
        own.execute(f'select "{schema}".list(null, null, 1)'.encode())
    assert raw.value.sqlstate == "42501"
