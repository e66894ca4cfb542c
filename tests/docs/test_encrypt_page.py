"""docs/howto/encrypt.md: its snippets run, and the codec with a key service does what the page says."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.canaries import CANARY, Secret, Waiter, echo, told
from tests.support.engine import Opening
from tests.support.pages import snippets

from gen_durable import Finished
from gen_durable.encryption import PayloadContext
from gen_durable.errors import CodecUnavailable, DecodeError
from gen_durable.telemetry import SignalRejected, StateUndecodable

PAGE = Path(__file__).parents[2] / "docs/howto/encrypt.md"
CONTEXT = PayloadContext("s", 1, "result")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of the snippets."""
    monkeypatch.setenv("PAYLOAD_KEY", secrets.token_hex(32))
    names: dict[str, Any] = {}
    for snippet in snippets(PAGE):
        exec(compile("\n" * (snippet.line - 1) + snippet.source, str(PAGE), "exec"), names)
    return names


class Service:
    """A key service that can be down, or silent."""

    def __init__(self) -> None:
        self.keys = {"2026-11": secrets.token_bytes(32), "2026-12": secrets.token_bytes(32)}
        self.asked: list[str] = []
        self.answer: Callable[[], object] = lambda: None

    def fetch(self, name: str) -> bytes:
        self.asked.append(name)
        self.answer()
        return self.keys[name]

    def fail(self) -> None:
        raise ConnectionError("down")


def test_keys_are_fetched_once(page: dict[str, Any]) -> None:
    service = Service()
    codec = page["KeyServiceCodec"](service.fetch, "2026-11")
    sealed = codec.encode(b"x", CONTEXT)
    assert codec.decode(sealed, CONTEXT) == b"x"
    assert service.asked == ["2026-11"]
    new = page["KeyServiceCodec"](service.fetch, "2026-12")
    assert (new.decode(sealed, CONTEXT), new.is_current(sealed), codec.is_current(sealed)) == (b"x", False, True)
    with pytest.raises(DecodeError, match="changed or copied"):
        codec.decode(sealed, PayloadContext("s", 2, "result"))
    del service.keys["2026-11"]
    with pytest.raises(DecodeError, match="has no key '2026-11'"):
        page["KeyServiceCodec"](service.fetch, "2026-12").decode(sealed, CONTEXT)


def test_an_outage_is_bounded_and_a_copy_is_used(page: dict[str, Any]) -> None:
    service, gate = Service(), threading.Event()
    codec = page["KeyServiceCodec"](service.fetch, "2026-11", timeout=0.05, lifetime=0.0)
    sealed = codec.encode(b"x", CONTEXT)
    for answer in (gate.wait, service.fail):
        service.answer = answer
        assert codec.decode(sealed, CONTEXT) == b"x"
        with pytest.raises(CodecUnavailable, match="did not answer for key '2026-12'"):
            page["KeyServiceCodec"](service.fetch, "2026-12", timeout=0.05)
    gate.set()


async def test_no_signal_is_rejected_in_an_outage(engine: Opening, page: dict[str, Any]) -> None:
    """The row is put back; when the service answers again, it goes on with the signal."""
    service = Service()
    async with engine(codec=page["KeyServiceCodec"](service.fetch, "2026-11")) as e:
        handle = await e.app.insert(Waiter.wait, Secret("x"))
    async with engine(codec=page["KeyServiceCodec"](service.fetch, "2026-12")) as e:
        await e.app.signal(handle.id, told, Secret(CANARY))
    late = Service()
    late.keys = service.keys
    codec = page["KeyServiceCodec"](late.fetch, "2026-11")
    late.answer = late.fail
    async with engine(codec=codec) as e, e.worker(Waiter(), echo):
        (event, *_) = await e.seen.until(StateUndecodable)
        assert "its signal/told cannot be decoded: the key service did not answer" in event.error
        assert e.seen.of(SignalRejected) == []
        late.answer = lambda: None
        await e.rows.fetch("update @.instances set eligible_at = now()")
        assert await e.end(e.app.handle(handle.id, Waiter.wait)) == Finished(handle.id, f"{CANARY}/x")
