"""The answer to a call gets lost: a call that may run twice is repeated, every other one says that it may have run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.processes import Proxy

from gen_durable import Concurrency, Durable, Handle, Signal, Start, job
from gen_durable.contrib.aes import AesGcm
from gen_durable.errors import DatabaseUnavailable

Proxied = Callable[[], AbstractAsyncContextManager[Proxy]]
Call = Callable[[Durable, Handle[Any]], Awaitable[object]]
go = Signal("go", int)


@job
async def double(number: int) -> int:
    return 2 * number


REPEATED: dict[str, Call] = {
    "get": lambda app, handle: app.get(handle.id),
    "get by key": lambda app, _: app.get("k"),
    "list": lambda app, _: app.list(),
    "count": lambda app, _: app.count(),
    "history": lambda app, handle: app.history(handle),
    "activities": lambda app, handle: app.activities(handle),
    "checkpoint": lambda app, handle: app.checkpoint(handle),
    "progress": lambda app, handle: app.progress(handle),
    "limits": lambda app, _: app.limits(),
    "set_limit": lambda app, _: app.set_limit("stripe", Concurrency(3)),
    "remove_limit": lambda app, _: app.remove_limit("none"),
    "cancel": lambda _, handle: handle.cancel(),
    "signal with a dedup key": lambda app, handle: app.signal(handle.id, go, 1, dedup_key="once"),
    "insert of a key that may exist": lambda app, _: app.insert_many(
        [Start(double, 2, unique_key="new")], on_conflict="existing"
    ),
}
NOT_REPEATED: dict[str, Call] = {
    "insert": lambda app, _: app.insert(double, 2),
    "insert of a key that must be new": lambda app, _: app.insert(double, 2, unique_key="new"),
    "insert without a key": lambda app, _: app.insert_many([Start(double, 2)], on_conflict="existing"),
    "signal": lambda app, handle: app.signal(handle.id, go, 1),
    "retry": lambda _, handle: handle.retry(),
    "delete": lambda _, handle: handle.delete(),
}
WITH_A_CODEC: dict[str, Call] = {
    "insert": lambda app, _: app.insert(double, 2),
    "signal by key": lambda app, _: app.signal("k", go, 1),
    "history by key": lambda app, _: app.history("k"),
}


@pytest.mark.parametrize("name", REPEATED)
async def test_repeated(schema: str, proxied: Proxied, name: str) -> None:
    async with proxied() as proxy, Durable(proxy.dsn, schema=schema) as app:
        handle = await app.insert(double, 1, unique_key="k")
        proxy.losing = b""
        await REPEATED[name](app, handle)
        assert proxy.lost == 1


@pytest.mark.parametrize("name", NOT_REPEATED)
async def test_not_repeated(schema: str, proxied: Proxied, name: str) -> None:
    async with proxied() as proxy, Durable(proxy.dsn, schema=schema) as app:
        handle = await app.insert(double, 1, unique_key="k")
        proxy.losing = b""
        with pytest.raises(DatabaseUnavailable, match="it may or may not have been executed"):
            await NOT_REPEATED[name](app, handle)


@pytest.mark.parametrize("name", WITH_A_CODEC)
async def test_with_a_codec_ids_are_asked_for_again(schema: str, proxied: Proxied, name: str) -> None:
    """They are needed before anything can be encrypted or decrypted."""
    codec = AesGcm({"k1": bytes(32)})
    async with proxied() as proxy, Durable(proxy.dsn, schema=schema, codec=codec) as app:
        handle = await app.insert(double, 1, unique_key="k")
        proxy.losing = b""
        await WITH_A_CODEC[name](app, handle)
        assert proxy.lost == 1
