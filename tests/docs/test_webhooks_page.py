"""docs/howto/webhooks.md: its snippets run, and its options do what the page says."""

from __future__ import annotations

import re

import pytest
from tests.support.engine import Opening, soon
from tests.support.pages import DOCS, page_names, run_page, run_snippet, snippets
from tests.support.webhooks import Names, names, receiver

from gen_durable import Failed, Finished
from gen_durable.contrib.webhook import Delivered, Delivery, Webhook

__all__ = ["names"]

PAGE = DOCS / "howto/webhooks.md"
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(autouse=True)
def on_loopback(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts of the page are on loopback, where nothing listens."""
    names.set("example.com", ["127.0.0.1"])
    names.set("localhost", ["127.0.0.9"])
    monkeypatch.setenv("SHOP_SECRET", KEY)


async def test_all_snippets_of_the_page_run(dsn: str, schema: str) -> None:
    assert len(snippets(PAGE)) == 3
    await run_page(PAGE, dsn, schema)


async def test_a_delivery_of_the_page_is_signed_and_verified(engine: Opening, names: Names) -> None:
    """The page's worker refuses loopback; with private networks its delivery arrives, and its receiver verifies it."""
    async with engine() as e:
        with page_names() as module:
            module["app"] = e.app
            for snippet in snippets(PAGE)[:2]:
                await run_snippet(snippet, PAGE, module)
            secrets = {"shop": module["secret"]}
            delivery = Delivery("https://example.com/hook", 1, secret="shop")
            async with e.worker(Webhook(secrets, max_attempts=1)):
                handle = await e.app.insert(Webhook.send, delivery)
                ending = await soon(handle.wait())
                assert isinstance(ending, Failed)
                assert "not delivered" in ending.error
            async with (
                receiver("200") as there,
                e.worker(Webhook(secrets, allow_private_networks=True)),
            ):
                sent = Delivery(f"http://example.com:{there.port}/", {"order": 42}, secret="shop")
                handle = await e.app.insert(Webhook.send, sent)
                assert await soon(handle.wait()) == Finished(handle.id, Delivered(200, 1))
                headers, body = there.requests[0]
                assert module["receive"](body, headers) == {"order": 42}


def test_the_command_of_the_page_makes_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"^python -c '(.*)'$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    exec(found[1], {})  # our own documentation
    assert re.fullmatch(r"whsec_[A-Za-z0-9+/]{43}=\n", capsys.readouterr().out)
