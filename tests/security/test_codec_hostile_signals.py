"""A login without the key sends signals: they are set aside, and the instance gets the real one."""

from __future__ import annotations

import pytest
from tests.security.test_codec import aes
from tests.support.canaries import CANARY, Secret, Waiter, told
from tests.support.engine import Engine, Opening

from gen_durable import Finished, Handle
from gen_durable.encryption import PayloadEncryption, signal_field
from gen_durable.telemetry import SignalRejected

CLEAR = '{"text": "forged", "count": 0}'


def forged(kind: str, handle: Handle[str], schema: str) -> str:
    """The payload of a signal that no worker can open, as JSON."""
    own = PayloadEncryption(aes("other"), schema, read_unencrypted=False)
    stolen = PayloadEncryption(aes(), schema, read_unencrypted=False)
    return {
        "clear": CLEAR,
        "clear text": '"forged"',
        "null": "null",
        "no base64": '"encrypted:1:!!"',
        "empty": '"encrypted:1:"',
        "garbage": '"encrypted:1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"',
        "another key": own.encrypt(CLEAR, handle.id, signal_field("told")),
        "of another instance": stolen.encrypt(CLEAR, handle.id + 1, signal_field("told")),
        "of another signal": stolen.encrypt(CLEAR, handle.id, signal_field("plain")),
        "of a state": stolen.encrypt(CLEAR, handle.id, "state/Waiter/1/wait"),
    }[kind]


KINDS = (
    *("clear", "clear text", "null", "no base64", "empty", "garbage"),
    *("another key", "of another instance", "of another signal", "of a state"),
)


async def send(e: Engine, handle: Handle[str], kind: str, dedup_key: str | None = None) -> None:
    """As a login sends it that may call the function, and has no key."""
    payload = forged(kind, handle, e.rows.schema)
    call = "select @.signal($1::bigint, 'told', $2::text::jsonb, dedup_key => $3)"
    await e.rows.fetch(call, handle.id, payload, dedup_key)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_real_signal_arrives(engine: Opening, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Under the dedup key of the forged one too; nothing counts as a failure, and no message advises a downgrade."""
    async with engine(codec=aes()) as e, e.worker(Waiter()):
        handle = await e.app.insert(Waiter.wait, Secret("x"))
        await e.rows.until(handle, status="awaiting_signal")
        await send(e, handle, kind, "paid")
        (event,) = await e.seen.until(SignalRejected)
        row = await e.rows.until(handle, status="awaiting_signal")
        assert (row["attempt"], row["crashes"], row["postponements"], row["last_error"]) == (0, 0, 0, None)
        (rejected,) = await e.app.rejected_signals()
        assert (rejected.target_id, rejected.state, rejected.dedup_key) == (handle.id, "rejected", "paid")
        for text in (event.reason, rejected.reason or "", caplog.text):
            assert "read_unencrypted" not in text
            assert "forged" not in text
        assert await handle.signal(told, Secret(CANARY), dedup_key="paid")
        assert await e.end(handle) == Finished(handle.id, f"{CANARY}/x")


@pytest.mark.parametrize("kind", KINDS)
async def test_across_cancel_and_retry(engine: Opening, kind: str) -> None:
    """The real signal is behind the forged one when the instance is cancelled: it is still there after the retry."""
    async with engine(codec=aes()) as e:
        handle = await e.app.insert(Waiter.wait, Secret("x"))
        await send(e, handle, kind)
        await handle.signal(told, Secret(CANARY), dedup_key="paid")
        await send(e, handle, kind)
        await handle.cancel()
        await e.app.retry(handle.id)
        async with e.worker(Waiter()):
            assert await e.end(handle) == Finished(handle.id, f"{CANARY}/x")


async def test_an_operator_drops_and_restores_them(engine: Opening) -> None:
    """A worker with the right key reads a restored one; the forged ones are dropped."""
    async with engine(codec=aes("other")) as e:
        handle = await e.app.insert(Waiter.wait, Secret("x"))
    async with engine(codec=aes("k1", "other", write="k1")) as e, e.worker(Waiter()):
        await e.rows.until(handle, status="awaiting_signal")
        await send(e, handle, "clear")
        await e.seen.until(SignalRejected)
        (one,) = await e.app.rejected_signals()
        assert await e.app.restore_signals([one.id]) == {one.id: "restored"}
        await e.seen.until(SignalRejected, count=2)
        assert await e.app.delete_signals(handle.id) == 1
        assert await e.app.rejected_signals() == []
        assert await e.app.signal(handle.id, told, Secret(CANARY))
        assert await e.end(e.app.handle(handle.id, Waiter.wait)) == Finished(handle.id, f"{CANARY}/x")
