"""docs/howto/signals.md: its snippets run, and its numbers are those of the code."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.engine import Opening, soon

from gen_durable import Failed, Finished
from gen_durable.engine.claim_part_loader import MAX_UNAWAITED
from gen_durable.errors import EncodeError
from gen_durable.telemetry import SignalRejected
from gen_durable.validation import MAX_CLAIM_PART, MAX_INBOX, MAX_PAYLOAD

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/signals.md").read_text("utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The Python blocks of the page as one module."""
    source = "\n\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    path = tmp_path_factory.mktemp("page") / "signals_page.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("signals_page", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules["signals_page"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["signals_page"]


async def test_an_approval_a_rejection_and_a_timeout(engine: Opening, page: Any) -> None:
    async with engine() as e, e.worker(page.Request()):
        first, second, third = [await e.app.insert(page.Request.submit, n) for n in (1, 2, 3)]
        assert await page.approve(e.app, first.id, "kim") is True
        assert await soon(first.wait()) == Finished(first.id, "1 approved by kim")
        await second.signal(page.rejected, "too much")
        assert await soon(second.wait()) == Finished(second.id, "2 rejected: too much")
        await e.rows.until(third, status="awaiting_signal")
        await e.rows.fetch("update @.instances set await_deadline = now() where id = $1", third.id)
        ending = await soon(third.wait())
        assert isinstance(ending, Failed)
        with pytest.raises(EncodeError):
            await e.app.signal(third, page.approved, page.Approval(by=7))


async def test_all_of_several_signals(engine: Opening, page: Any) -> None:
    async with engine() as e, e.worker(page.Signing()):
        handle = await e.app.insert(page.Signing.collect, page.Contract())
        for party in ("seller", "seller", "buyer", "notary"):
            await handle.signal(page.signed, party)
        assert await soon(handle.wait()) == Finished(handle.id, ["buyer", "notary", "seller"])


async def test_a_mailbox_and_how_to_empty_it(engine: Opening, page: Any) -> None:
    async with engine() as e:
        handle = await e.app.insert(page.Mailbox.handle, 0)
        await handle.signal(page.message, 1000)
        assert await page.drop_messages(e.app, handle.id) == 1
        for number in (1, 2, 3, 0):
            await handle.signal(page.message, number)
        async with e.worker(page.Mailbox()):
            assert await soon(handle.wait()) == Finished(handle.id, 6)


async def test_a_second_wait_is_not_answered_by_the_first_signal(engine: Opening, page: Any) -> None:
    async with engine() as e, e.worker(page.Reminder()):
        handle = await e.app.insert(page.Reminder.first, None)
        await handle.signal(page.cancelled)
        await e.rows.until(handle, status="awaiting_signal", step="last")
        await e.rows.fetch("update @.instances set await_deadline = now()")
        assert await soon(handle.wait()) == Finished(handle.id, "timed out")


async def test_rejected_signals_are_restored(engine: Opening, page: Any) -> None:
    async with engine() as e, e.worker(page.Mailbox()):
        handle = await e.app.insert(page.Mailbox.handle, 0)
        await e.rows.value("""select @.signal($1::bigint, 'message', '"x"')""", handle.id)
        await e.seen.until(SignalRejected)
        await e.rows.fetch("update @.signals set payload = '0'")
        assert await page.restore_all(e.app) == 1
        assert await soon(handle.wait()) == Finished(handle.id, 0)


def test_the_numbers_of_the_page() -> None:
    assert f"{MAX_PAYLOAD // 1_000_000} MB |" in PAGE
    assert f"{MAX_INBOX:,}, and {MAX_CLAIM_PART // 1_000_000} MB |" in PAGE
    assert f"oldest {MAX_UNAWAITED // 1_000_000} MB" in PAGE
    sql = (ROOT / "src/gen_durable/sql/functions/signal.sql").read_text()
    assert "inbox.count >= 20000 or inbox.bytes + given.total > 128000000" in sql
    assert "20,000, and 128 MB |" in PAGE
