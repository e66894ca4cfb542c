"""The webhook machine against a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from datetime import timedelta
from email.utils import formatdate
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import standardwebhooks
from tests.support.webhooks import Names, make_certificate, names, receiver

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
from gen_durable.contrib.webhook import Delivered, Delivery, Secret, Webhook
from gen_durable.errors import ConfigError

__all__ = ["names"]

SOON = timedelta(seconds=15)
QUICK: dict[str, Any] = {"base": timedelta(milliseconds=10), "cap": timedelta(milliseconds=20)}
LOCAL: dict[str, Any] = {**QUICK, "allow_private_networks": True}
"""For receivers on loopback."""
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def test_a_delivery_is_signed_and_keyed(dsn: str, schema: str) -> None:
    """The receiver can check the signature and recognise a repetition; the secret is not in the row."""
    async with (
        receiver("503", "200") as there,
        Durable(dsn, schema=schema) as app,
        Worker(app, machines=[Webhook({"shop": Secret(KEY, hosts=["127.0.0.1"])}, **LOCAL)]),
    ):
        sent = Delivery(there.url, {"b": 1, "a": ["ü"]}, {"X-Shop": "tea"}, secret="shop")
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
        assert first["host"] == f"127.0.0.1:{there.port}"
        assert standardwebhooks.Webhook(KEY).verify(body, first) == {"b": 1, "a": ["ü"]}
        assert standardwebhooks.Webhook(KEY).verify(again, second) == {"b": 1, "a": ["ü"]}
        connection = await asyncpg.connect(dsn)
        row = await connection.fetchval(f'select i::text from "{schema}".instances i where id = $1', handle.id)
        await connection.close()
        assert KEY.removeprefix("whsec_") not in row


async def test_a_secret_signs_for_its_hosts_only(dsn: str, schema: str, names: Names) -> None:
    """A client that names a secret gets no signature over its own body at a URL of its own."""
    names.set("shop.test", ["127.0.0.1"])
    names.set("own.shop.test", ["127.0.0.1"])
    hook = Webhook({"shop": Secret(KEY, hosts=["shop.test"])}, max_attempts=1, **LOCAL)
    async with receiver("200") as there, Durable(dsn, schema=schema) as app, Worker(app, machines=[hook]):
        for host in ("127.0.0.1", "own.shop.test", "shop.test.own.test"):
            handle = await app.insert(Webhook.send, Delivery(f"http://{host}:{there.port}/", 1, secret="shop"))
            ending = await handle.wait(SOON)
            assert isinstance(ending, Failed)
            assert f"the secret 'shop' does not sign for the host {host}" in ending.error
        assert there.requests == []
        handle = await app.insert(Webhook.send, Delivery(f"http://SHOP.test.:{there.port}/", 1, secret="shop"))
        assert await handle.wait(SOON) == Finished(handle.id, Delivered(200, 1))
        assert there.requests[0][0]["host"] == f"shop.test:{there.port}"


@pytest.mark.parametrize(
    ("answers", "calls", "words"),
    [
        (["410"], 1, "webhook to 127.0.0.1: HTTP 410"),
        (["404"], 3, "gave up after 3 attempts: webhook to 127.0.0.1: HTTP 404"),
        (["500"], 3, "HTTP 500"),
        (["302\nlocation: /elsewhere"], 3, "HTTP 302"),
        (["cut"], 3, "no answer"),
        (["hang"], 3, "no answer"),
    ],
)
async def test_details_are_stored_on_request(dsn: str, schema: str, answers: list[str], calls: int, words: str) -> None:
    """The dead letter is the failed instance; its reason names the host and no more of the URL."""
    hook = Webhook(max_attempts=3, timeout=timedelta(milliseconds=300), show_details=True, **LOCAL)
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
    date = int(time.time()) + 2
    value = "1" if how == "seconds" else formatdate(date, usegmt=True)
    async with (
        receiver(f"429\nretry-after: {value}", "204") as there,
        Durable(dsn, schema=schema) as app,
        Worker(app, machines=[Webhook(**LOCAL)]),
    ):
        handle = await app.insert(Webhook.send, Delivery(there.url, 1))
        assert await handle.wait(SOON) == Finished(handle.id, Delivered(204, 2))
        if how == "seconds":
            assert there.times[1] - there.times[0] > 0.8
        else:
            assert there.times[1] - time.monotonic() + time.time() > date - 0.1


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
        Worker(app, machines=[Shop(), Webhook(client=client, **LOCAL)]),
    ):
        handle = await app.insert(Shop.waits, there.url)
        assert await handle.wait(SOON) == Finished(handle.id, 200)
        async with asyncio.timeout(10):
            while len(there.requests) < 2:  # noqa: ASYNC110 - the server is not ours to be told by
                await asyncio.sleep(0.01)
        assert [json.loads(body) for _, body in there.requests] == ["child", "then"]


async def test_a_client_follows_no_redirect_either(dsn: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever its own default is. httpx logs URLs, as the page says."""
    caplog.set_level(logging.INFO)
    async with (
        httpx.AsyncClient(follow_redirects=True) as client,
        receiver("307\nlocation: /elsewhere", "200") as there,
        Durable(dsn, schema=schema) as app,
        Worker(app, machines=[Webhook(client=client, max_attempts=1, **LOCAL)]),
    ):
        handle = await app.insert(Webhook.send, Delivery(there.url, 1))
        assert isinstance(await handle.wait(SOON), Failed)
        assert len(there.requests) == 1
        assert [r.name for r in caplog.records if "hidden" in r.getMessage()] == ["httpx"]


async def test_an_unknown_secret_is_told(dsn: str, schema: str) -> None:
    """Nothing is sent unsigned that should be signed."""
    hook = Webhook({"shop": Secret(KEY, hosts=["127.0.0.1"])}, max_attempts=1, **LOCAL)
    async with receiver("200") as there, Durable(dsn, schema=schema) as app, Worker(app, machines=[hook]):
        handle = await app.insert(Webhook.send, Delivery(there.url, 1, secret="other"))
        ending = await handle.wait(SOON)
        assert isinstance(ending, Failed)
        assert "no secret 'other'" in ending.error
        assert there.requests == []


WEBHOOK_LOG = ("gen_durable.webhook", "INFO")
UNREACHABLE = [
    "dead",
    "private",
    "private by name",
    "unknown name",
    "404",
    "500",
    "302",
    "cut",
    "hang",
    "untrusted",
]


async def test_all_unreachable_targets_look_alike(
    dsn: str, schema: str, names: Names, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The instance tells nothing about ports, names and statuses: not by its text, its traceback or its attempts."""
    names.set("inside.test", ["127.0.0.1"])
    caplog.set_level(logging.DEBUG, "gen_durable")
    caplog.set_level(logging.INFO)
    seen: dict[str, object] = {}
    reasons: dict[str, str] = {}
    async with (
        receiver("404") as missing,
        receiver("500") as broken,
        receiver("302\nlocation: /elsewhere") as moved,
        receiver("cut") as cut,
        receiver("hang") as silent,
        receiver("200") as private,
        receiver("200", tls=make_certificate("a.test", tmp_path).tls) as untrusted,
        Durable(dsn, schema=schema) as app,
    ):
        urls = {
            "dead": "http://127.0.0.1:1/?token=hidden",
            "private": f"https://127.0.0.1:{private.port}/?token=hidden",
            "private by name": f"https://inside.test:{private.port}/?token=hidden",
            "unknown name": "https://nowhere.test/?token=hidden",
            "404": missing.url,
            "500": broken.url,
            "302": moved.url,
            "cut": cut.url,
            "hang": silent.url,
            "untrusted": f"https://127.0.0.1:{untrusted.port}/?token=hidden",
        }
        for kind in UNREACHABLE:
            caplog.clear()
            is_refused = kind in ("private", "private by name", "unknown name")
            options = {**QUICK, "ports": [private.port, 443]} if is_refused else LOCAL
            hook = Webhook(max_attempts=2, timeout=timedelta(seconds=0.3 if kind == "hang" else 5), **options)
            async with Worker(app, machines=[hook]):
                handle = await app.insert(Webhook.send, Delivery(urls[kind], None))
                await handle.wait(SOON)
            found = await app.get(handle)
            assert found is not None
            seen[kind] = (
                found.status,
                found.last_error,
                found.error_type,
                found.traceback,
                found.attempt,
                found.step_errors,
                [(t.outcome, t.error, t.error_type, t.traceback) for t in await app.history(handle)],
            )
            (reasons[kind], _) = [r.getMessage() for r in caplog.records if (r.name, r.levelname) == WEBHOOK_LOG]
            assert "hidden" not in caplog.text
            assert ".test" not in caplog.text
        assert private.requests == []
    assert len({repr(one) for one in seen.values()}) == 1, seen
    text = repr(seen["dead"])
    assert "gave up after 2 attempts: not delivered" in text
    assert "127.0.0.1" not in text
    assert [reasons[kind].partition(" failed: ")[2] for kind in UNREACHABLE] == [
        "no answer (ConnectError)",
        "no answer (AddressRefused)",
        "no answer (AddressRefused)",
        "no answer (gaierror)",
        "HTTP 404",
        "HTTP 500",
        "HTTP 302",
        "no answer (RemoteProtocolError)",
        "no answer (TimeoutError)",
        "no answer (ConnectError)",
    ]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"url": "https://a.test/", "headers": {"Transfer-Encoding": "chunked"}}, "belongs to the HTTP connection"),
        ({"url": "https://a.test/", "headers": {"X": "1\r\nHost: b"}}, "printable ASCII"),
        ({"url": "https://user:word@a.test/"}, "has a user name"),
        ({"url": "gopher://a.test/"}, "must begin with https://"),
    ],
)
async def test_a_bad_row_fails_at_once(
    dsn: str, schema: str, state: dict[str, object], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """SQL inserts what our client refuses. The step refuses it too, and the instance ends with the reason."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Webhook()]):
        connection = await asyncpg.connect(dsn)
        number = await connection.fetchval(
            f"""select "{schema}".insert('gen_durable.webhook', 'send', $1)""", json.dumps({"body": 1, **state})
        )
        await connection.close()
        handle = app.handle(number, Webhook.send)
        ending = await handle.wait(SOON)
        assert isinstance(ending, Failed)
        assert words in ending.error
        assert "word@" not in ending.error
        assert "a.test" not in caplog.text
        found = await app.get(handle)
        assert found is not None
        assert found.attempt == 0


@pytest.mark.parametrize(
    ("url", "hook", "words"),
    [
        ("http://a.test/", Webhook(max_attempts=1), "must begin with https://"),
        ("https://a.test:8443/", Webhook(max_attempts=1), "the port 8443 is not allowed"),
        ("https://a.test:22/", Webhook(max_attempts=1, ports=[443, 8443]), "the port 22 is not allowed"),
        ("http://a.test:22/", Webhook(max_attempts=1, ports=[80], **LOCAL), "the port 22 is not allowed"),
    ],
)
async def test_the_worker_decides_on_schemes_and_ports(
    dsn: str, schema: str, url: str, hook: Webhook, words: str
) -> None:
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[hook]):
        handle = await app.insert(Webhook.send, Delivery(url, 1))
        ending = await handle.wait(SOON)
        assert isinstance(ending, Failed)
        assert words in ending.error


def test_a_worker_without_httpx_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ConfigError, match=r"gen-durable\[webhook\]"):
        Webhook()


def test_mistakes_are_refused_where_they_are_made() -> None:
    """A worker with a configuration that cannot work, or that would check less than it says, does not start."""
    secret: Any = KEY
    bad: list[tuple[dict[str, Any], str]] = [
        ({"max_attempts": 0}, "must be 1 or more"),
        ({"secrets": {"shop": secret}}, "Pass Secret"),
        ({"sender": "a\r\nb"}, "sender="),
        ({"sender": "a.b"}, "sender="),
        ({"ports": []}, "ports="),
        ({"ports": ["443"]}, "ports="),
        ({"ports": [0]}, "ports="),
        ({"client": httpx.AsyncClient()}, "cannot be checked"),
    ]
    for options, words in bad:
        with pytest.raises(ConfigError, match=words):
            Webhook(**options)
