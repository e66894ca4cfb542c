"""`handle.token` with a database: computed without a call, valid in one installation, and no right of its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest
from tests.support.roles import logins
from tests.support.schemas import Schemas

from gen_durable import Durable, Signal, SyncDurable, job
from gen_durable.errors import ConfigError, DatabaseRefused, InputError, NoTarget, NotFound
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.installation_keys import InstallationKeys
from gen_durable.store.schema import Schema

hello = Signal("hello", int)


@job
async def order(number: int) -> int:
    return number


async def test_a_token_leads_back_to_its_instance(dsn: str, schema: str) -> None:
    """Also in another process and in a client without `await`; a handle by key has an id only after a call."""
    async with Durable(dsn, schema=schema) as app, Durable(dsn, schema=schema) as other_process:
        handle = await app.insert(order, 42, unique_key="order:42")
        token = handle.token
        found = other_process.handle_of_token(token, order)
        assert (found.id, found.machine, found.token) == (handle.id, "order", token)
        assert (await found.get()).state == 42
        with pytest.raises(InputError, match="has no id"):
            _ = app.handle("order:42", order).token
        assert str(services_key(app)) not in repr(InstallationKeys("", services_key(app)))
    with pytest.raises(ConfigError, match="not open"):
        _ = handle.token
    with SyncDurable(dsn, schema=schema) as sync:
        again = sync.handle_of_token(token, order)
        assert (again.id, again.token, again.get().state) == (handle.id, token, 42)
        with pytest.raises(InputError, match="not a handle token"):
            sync.handle_of_token(token.lower(), order)


def services_key(app: Durable) -> bytes:
    return app._services.handle_token_key


async def test_tokens_cost_no_statement(dsn: str, schema: str) -> None:
    """Opening reads the key with the row that it reads anyway; tokens are made and refused without the database."""
    texts: list[str] = []
    run = PersistentConnection.run

    async def recording(self: PersistentConnection, statement: Any, *args: Any, **options: Any) -> Any:
        texts.append(statement.text)
        return await run(self, statement, *args, **options)

    with mock.patch.object(PersistentConnection, "run", recording):
        async with Durable(dsn, schema=schema) as app:
            assert len([text for text in texts if "idempotency_prefix" in text or "handle_token_key" in text]) == 1
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(order, 1)
        closed_pool = mock.Mock(side_effect=AssertionError("a statement"))
        with mock.patch.object(app._services.statement_runner, "_get_pool", closed_pool):
            token = handle.token
            assert app.handle_of_token(token, order).id == handle.id
            for forged in (token[:-1], token.swapcase(), "A" * 32):
                with pytest.raises(InputError, match="not a handle token"):
                    app.handle_of_token(forged, order)


@pytest.fixture
def second_schema(schemas: Schemas) -> Iterator[str]:
    name = schemas.take()
    yield name
    schemas.give_back(name)


async def test_another_installation_refuses_the_token(dsn: str, schema: str, second_schema: str) -> None:
    """The same id, another key; and each key is 32 bytes."""
    async with Durable(dsn, schema=schema) as app, Durable(dsn, schema=second_schema) as other:
        here, there = await app.insert(order, 1), await other.insert(order, 1)
        assert here.id == there.id
        assert here.token != there.token
        assert (len(services_key(app)), len(services_key(other))) == (32, 32)
        for client, token in ((app, there.token), (other, here.token)):
            with pytest.raises(InputError, match="not a handle token of this installation"):
                client.handle_of_token(token, order)


@pytest.mark.dirty
async def test_a_new_key_refuses_all_earlier_tokens(dsn: str, schema: str) -> None:
    """By the statement of SECURITY.md, for clients that are opened afterwards."""
    page = " ".join((Path(__file__).parents[2] / "SECURITY.md").read_text().split())
    (statement,) = re.findall(r"`(update gen_durable\.installation [^`]+)`", page)
    async with Durable(dsn, schema=schema) as app:
        handle = await app.insert(order, 1)
        token = handle.token
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(statement.replace("gen_durable.", f'"{schema}".'))
        assert handle.token == token
    async with app:
        assert len(services_key(app)) == 32
        with pytest.raises(InputError, match="not a handle token of this installation"):
            app.handle_of_token(token, order)


@pytest.mark.direct(reason="logs in as other roles")
@pytest.mark.dirty
def test_a_token_is_no_right(dsn: str, schema: str) -> None:
    """Each role opens a client and makes the same token; what it may do with the instance is decided by its login."""
    with logins(dsn, schema) as dsns:
        asyncio.run(use_token(dsns, schema))
        with psycopg.connect(dsns["stranger"]) as stranger, pytest.raises(psycopg.errors.InsufficientPrivilege):
            stranger.execute(f"select handle_token_key from {Schema(schema).name}.installation")


async def use_token(dsns: dict[str, str], schema: str) -> None:
    async with Durable(dsns["producer"], schema=schema) as app:
        token = (await app.insert(order, 42)).token
        assert (await app.handle_of_token(token, order).get()).state == 42
    for login in ("producer2", "client2", "viewer", "reader", "worker", "admin"):
        async with Durable(dsns[login], schema=schema) as app:
            handle = app.handle_of_token(token, order)
            assert handle.token == token
            match login:
                case "producer2":
                    for call in (handle.get, handle.cancel):
                        with pytest.raises(NotFound):
                            await call()
                    with pytest.raises(NoTarget):
                        await handle.signal(hello, 1)
                case "client2":
                    with pytest.raises(NotFound):
                        await handle.get()
                    assert await handle.signal(hello, 1)
                case "viewer":
                    instance = await handle.get()
                    with pytest.raises(InputError, match="without its state"):
                        _ = instance.state
                    with pytest.raises(DatabaseRefused):
                        await handle.cancel()
                case _:
                    assert (await handle.get()).state == 42
