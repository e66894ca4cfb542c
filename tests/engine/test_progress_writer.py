"""The writer of progress: when it writes, how much at once, and what it does in the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.journal import Counting

from gen_durable import Durable, job
from gen_durable.core.services import services_of
from gen_durable.encryption import PayloadContext, PayloadEncryption
from gen_durable.engine import progress_writer
from gen_durable.engine.progress_writer import ProgressWriter
from gen_durable.store.journal import ProgressReport
from gen_durable.store.statements import Statement


@job
async def noop(n: int) -> int:
    """Never run here: the tests claim by hand."""
    return n


class Timed(Counting):
    """Keeps the times at which reports are sent."""

    __slots__ = ("times",)

    def __init__(self, app: Durable) -> None:
        super().__init__(app)
        self.times: list[float] = []

    def record_progress(self, reports: Sequence[ProgressReport]) -> Statement[set[int]]:
        self.times.append(time.monotonic())
        return super().record_progress(reports)


class Hanging(Timed):
    """Its statement does not return."""

    __slots__ = ()

    def record_progress(self, reports: Sequence[ProgressReport]) -> Statement[set[int]]:
        self.times.append(time.monotonic())
        return Statement("select pg_sleep(20)", (), lambda _: set())


class ReversingCodec:
    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        return data[::-1]

    decode = encode


@dataclass
class Opened:
    app: Durable
    writer: ProgressWriter
    statements: Timed
    instance: int
    epoch: int

    def report(self, message: str | None, **options: Any) -> None:
        given = {"branch": "", "fraction": None, "detail": None, **options}
        self.writer.report_progress(self.instance, self.epoch, "run", message=message, **given)

    async def stored(self) -> list[str | None]:
        return [progress.message for progress in await self.app.progress(self.instance)]

    async def until_stored(self, *messages: str) -> None:
        async with asyncio.timeout(10):
            while await self.stored() != list(messages):  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def until_idle(self) -> None:
        task = self.writer._task
        assert task is not None
        async with asyncio.timeout(10):
            await task


@asynccontextmanager
async def opened(dsn: str, schema: str, statements: type[Timed] = Timed) -> AsyncIterator[Opened]:
    """A writer, and one claimed row for which it may write."""
    async with Durable(dsn, schema=schema) as app:
        services = services_of(app)
        await app.insert(noop, 1)
        (claim,) = (await services.pool.run(services.statements.pick("w", {"default": 1}, ["noop/1/run"], 60))).claims
        counting = statements(app)
        writer = ProgressWriter(services.pool, counting, None)
        yield Opened(app, writer, counting, claim.id, claim.epoch)
        await writer.close()


async def test_a_report_of_a_thread_is_written(dsn: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """The event loop is told in the way that a thread may use, which its debug mode checks."""
    asyncio.get_running_loop().set_debug(True)
    async with opened(dsn, schema) as o:
        await asyncio.to_thread(o.report, "from a thread")
        await o.until_stored("from a thread")
    asyncio.get_running_loop().set_debug(False)
    assert "dropped" not in caplog.text


async def test_reports_after_a_pause_are_written_too(dsn: str, schema: str) -> None:
    """The task ends when nothing is left, and a later report starts another one."""
    async with opened(dsn, schema) as o:
        for message in ("first", "second"):
            o.report(message)
            await o.until_idle()
            assert await o.stored() == [message]
        assert [len(reports) for reports in o.statements.sent] == [1, 1]


async def test_reports_are_gathered_between_two_statements(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a pause after each statement."""
    monkeypatch.setattr(progress_writer, "BATCH_PAUSE", 0.1)
    async with opened(dsn, schema) as o:
        o.report("first")
        await o.until_stored("first")
        o.report("second")
        await o.until_stored("second")
        assert o.statements.times[1] - o.statements.times[0] >= 0.09


async def test_close_writes_the_last_reports(dsn: str, schema: str) -> None:
    async with opened(dsn, schema) as o:
        o.report("first")
        await o.until_stored("first")
        o.report("last")
        await o.writer.close()
        assert await o.stored() == ["last"]


async def test_close_does_not_wait_for_a_database_that_hangs(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cancels the task."""
    monkeypatch.setattr(progress_writer, "CLOSE_SECONDS", 0.05)
    async with opened(dsn, schema, Hanging) as o:
        o.report("never")
        task = o.writer._task
        assert task is not None
        async with asyncio.timeout(10):
            await o.writer.close()
            assert task.cancelling() == 1
            await asyncio.wait([task])
        assert task.cancelled()


async def test_a_batch_is_bounded_in_bytes(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages and details count. Reports are taken in the order of ids; one that is too large goes alone."""
    monkeypatch.setattr(progress_writer, "BATCH_BYTES", 10)
    async with opened(dsn, schema) as o:
        options: dict[str, Any] = {"branch": "", "fraction": None}
        for instance, message, detail in ((4, "m" * 20, None), (3, "m", None), (2, None, None), (1, "mmmm", "dddd")):
            o.writer.report_progress(instance, 1, "run", message=message, detail=detail, **options)
        batches = [[report.id for _, report in o.writer._take_batch()] for _ in range(4)]
        assert batches == [[1, 2], [3], [4], []]


async def test_a_report_is_stored_as_it_was_given(dsn: str, schema: str) -> None:
    """With a codec its message and detail are encrypted, if it has any."""
    async with opened(dsn, schema) as o:
        encryption = PayloadEncryption(ReversingCodec(), "schema", read_unencrypted=False)
        encrypting = ProgressWriter(services_of(o.app).pool, o.statements, encryption)
        for writer in (o.writer, encrypting):
            options: dict[str, Any] = {"fraction": None, "message": None, "detail": None}
            writer.report_progress(7, 1, "run", branch="none", **options)
            writer.report_progress(7, 1, "run", branch="all", fraction=1, message="m", detail={"k": 1})
        (_, full), (_, empty) = o.writer._take_batch()
        assert full == ProgressReport(7, 1, "run", "all", 1.0, "m", '{"k":1}')
        assert empty == ProgressReport(7, 1, "run", "none", None, None, None)
        (_, full), (_, empty) = encrypting._take_batch()
        assert encryption.decrypt_text_if_encrypted(str(full.message), 7, "progress/message") == "m" != full.message
        assert encryption.decrypt(str(full.detail), 7, "progress/detail") == '{"k":1}'
        assert (empty.message, empty.detail) == (None, None)
        await encrypting.close()
