"""The webhook machine against a real HTTP server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import formatdate

import asyncpg
import httpx
import pytest

from gen_durable import (
    Context,
    Done,
    Durable,
    Failed,
    Finished,
    Machine,
    Outcome,
    ScheduleChildren,
    Start,
    Worker,
    step,
)
from gen_durable.contrib.webhook import Delivered, Delivery, Webhook, sign
from gen_durable.errors import ConfigError, InputError

SOON = timedelta(seconds=15)
QUICK = {"base": timedelta(milliseconds=10), "cap": timedelta(milliseconds=20)}


@dataclass
class Receiver:
    """An HTTP server that answers as it is told, and remembers what it was sent."""

    answers: list[str]
    url: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        raw = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append(({name.lower(): value for name, value in raw.items()}, body))
        self.times.append(time.monotonic())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "hang":
            await self.over.wait()
        elif answer != "cut":
            status, *extra = answer.split("\n")
            lines = [f"HTTP/1.1 {status} X", "content-length: 0", "connection: close", *extra, "", ""]
            writer.write("\r\n".join(lines).encode())
            await writer.drain()
        writer.close()


@asynccontextmanager
async def receiver(*answers: str) -> AsyncIterator[Receiver]:
    made = Receiver(list(answers))
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?token=hidden"
    try:
        yield made
    finally:
        server.close()
        made.over.set()
        await asyncio.sleep(0.01)


async def test_a_delivery_is_signed_and_keyed(dsn: str, schema: str) -> None:
    """The receiver can check the signature and recognise a repetition; the secret is not in the row."""
    async with (
        receiver("503", "200") as there,
        Durable(dsn, schema=schema) as app,
        Worker(app, machines=[Webhook({"shop": "canary-secret"}, **QUICK)]),
    ):
        sent = Delivery(there.url, {"b": 1, "a": ["ü"]}, {"X-Shop": "tea", "Webhook-Id": "forged"}, secret="shop")
        handle = await app.insert(Webhook.send, sent)
        assert await handle.wait(SOON) == Finished(handle.id, Delivered(200, 2))
        (first, body), (second, again) = there.requests
        assert body == again
        assert json.loads(body) == {"b": 1, "a": ["ü"]}
        assert (
            first["idempotency-key"] == second["idempotency-key"] == first["webhook-id"] == f"gen_durable-{handle.id}"
        )
        assert first["x-shop"] == "tea"
        assert first["content-type"] == "application/json"
        signed = f"{first['webhook-id']}.{first['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(b"canary-secret", signed, hashlib.sha256).digest()).decode()
        assert first["webhook-signature"] == f"v1,{expected}"
        assert abs(int(first["webhook-timestamp"]) - time.time()) < 60
        connection = await asyncpg.connect(dsn)
        row = await connection.fetchval(f'select i::text from "{schema}".instances i where id = $1', handle.id)
        await connection.close()
        assert "canary" not in row


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of the specification's own libraries."""
    secret = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    made = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("answers", "calls", "words"),
    [
        (["410"], 1, "webhook to 127.0.0.1: HTTP 410"),
        (["500"], 3, "gave up after 3 attempts: HTTP 500"),
        (["302\nlocation: http://127.0.0.1:1/"], 3, "HTTP 302"),
        (["cut"], 3, "no answer"),
        (["hang"], 3, "no answer"),
    ],
)
async def test_what_fails_is_kept_with_its_reason(
    dsn: str, schema: str, answers: list[str], calls: int, words: str
) -> None:
    """The dead letter is the failed instance; its reason names the host and no more of the URL."""
    hook = Webhook(max_attempts=3, timeout=timedelta(milliseconds=300), **QUICK)
    async with receiver(*answers) as there, Durable(dsn, schema=schema) as app, Worker(app, machines=[hook]):
        handle = await app.insert(Webhook.send, Delivery(there.url, None))
        ending = await handle.wait(SOON)
        assert isinstance(ending, Failed)
        assert words in ending.error
        assert "hidden" not in ending.error
        assert len(there.requests) == calls


@pytest.mark.parametrize("how", ["seconds", "date"])
async def test_retry_after_is_honoured(dsn: str, schema: str, how: str) -> None:
    """The receiver's word counts, where it is longer than the backoff."""
    value = "1" if how == "seconds" else formatdate(time.time() + 2, usegmt=True)
    async with (
        receiver(f"429\nretry-after: {value}", "204") as there,
        Durable(dsn, schema=schema) as app,
        Worker(app, machines=[Webhook(**QUICK)]),
    ):
        handle = await app.insert(Webhook.send, Delivery(there.url, 1))
        assert await handle.wait(SOON) == Finished(handle.id, Delivered(204, 2))
        assert there.times[1] - there.times[0] > 0.8


class Shop(Machine):
    """Tells others by webhook: waiting for it, or not."""

    @step
    async def waits(self, url: str, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(Webhook.send, Delivery(url, "child"))], then=self.told, state=url)

    @step
    async def told(self, url: str, ctx: Context) -> Outcome[int]:
        (delivered,) = ctx.results(Webhook.send)
        return Done(delivered.status, spawn=[Start(Webhook.send, Delivery(url, "then"))])


async def test_as_a_child_and_beside_an_outcome(dsn: str, schema: str) -> None:
    """It is a machine like any other. A client that is handed in is used, and left open."""
    async with (
        httpx.AsyncClient() as client,
        receiver("200") as there,
        Durable(dsn, schema=schema) as app,
        Worker(app, machines=[Shop(), Webhook(client=client)]),
    ):
        handle = await app.insert(Shop.waits, there.url)
        assert await handle.wait(SOON) == Finished(handle.id, 200)
        async with asyncio.timeout(10):
            while len(there.requests) < 2:  # noqa: ASYNC110 - the server is not ours to be told by
                await asyncio.sleep(0.01)
        assert [json.loads(body) for _, body in there.requests] == ["child", "then"]


async def test_an_unknown_secret_is_told(dsn: str, schema: str) -> None:
    """Nothing is sent unsigned that should be signed."""
    hook = Webhook({"shop": "x"}, max_attempts=1)
    async with receiver("200") as there, Durable(dsn, schema=schema) as app, Worker(app, machines=[hook]):
        handle = await app.insert(Webhook.send, Delivery(there.url, 1, secret="other"))
        ending = await handle.wait(SOON)
        assert isinstance(ending, Failed)
        assert "no secret 'other'" in ending.error
        assert there.requests == []


def test_mistakes_are_refused_where_they_are_made() -> None:
    """Bad URLs, headers, secrets and numbers."""
    for url in ("ftp://host/", "http://", "host/path"):
        with pytest.raises(InputError):
            Delivery(url, 1)
    with pytest.raises(InputError):
        Delivery("http://host/", 1, {"a b": "c"})
    with pytest.raises(InputError):
        Delivery("http://host/", 1, {"a": "c\r\nd: e"})
    for secret in ("", "whsec_%%%"):
        with pytest.raises(ConfigError):
            Webhook({"s": secret})
    with pytest.raises(ConfigError):
        Webhook(max_attempts=0)
