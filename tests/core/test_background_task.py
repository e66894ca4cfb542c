"""A background task that fails goes on: it says so once, tries again with pauses, and says when it works again."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from tests.support.engine import soon

from gen_durable.core import background_task
from gen_durable.core.background_task import RESTART_SECONDS, BackgroundTask
from gen_durable.pg.error_classifier import ConnectionLost


class Failing(BackgroundTask):
    """Fails for a number of runs."""

    def __init__(self, errors: list[Exception]) -> None:
        super().__init__("failing")
        self.errors = errors
        self.times: list[float] = []
        self.works = asyncio.Event()

    async def run_once(self) -> float:
        self.times.append(asyncio.get_running_loop().time())
        if self.errors:
            raise self.errors.pop(0)
        self.works.set()
        return 60.0


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("a payload"), "failing failed (ValueError"),
        (ConnectionLost(OSError("no route"), sent=False), "failing: the database is not reachable (OSError: no route)"),
    ],
)
async def test_failures_in_a_row_are_logged_once(
    error: Exception, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The text of an unexpected error may quote a payload, and is not logged."""
    caplog.set_level("INFO")
    task = Failing([error, error, error])
    task.start()
    await soon(task.works.wait())
    await asyncio.sleep(0)
    await task.stop()
    assert [record.message for record in caplog.records if words in record.message] == [caplog.messages[0]]
    assert caplog.messages[1:] == ["failing works again"]
    assert "a payload" not in caplog.text
    assert task.times[-1] - task.times[0] >= 0.3  # three growing pauses


async def test_a_task_that_failed_again_says_so_again(caplog: pytest.LogCaptureFixture) -> None:
    """Its pauses begin anew as well."""
    caplog.set_level("INFO")
    task = Failing([ValueError(), ValueError(), ValueError()])
    task.start()
    await soon(task.works.wait())
    await asyncio.sleep(0)
    ended = task._task
    await task.stop()
    assert ended is not None
    assert ended.done()
    task.works.clear()
    task.errors.append(ValueError())
    task.start()
    await soon(task.works.wait())
    await task.stop()
    assert [message.split(" (")[0] for message in caplog.messages] == ["failing failed", "failing works again"] * 2
    assert task.times[-1] - task.times[-2] < task.times[2] - task.times[1]  # the first pause, not the fourth


async def test_a_task_that_other_code_cancels_starts_again(caplog: pytest.LogCaptureFixture) -> None:
    """Once, and not after a stop."""
    task = Failing([])
    task.start()
    await soon(task.works.wait())
    task.works.clear()
    cancel_all_others()
    await soon(task.works.wait())
    assert caplog.messages == ["failing was cancelled by other code and starts again"]
    cancel_all_others()
    await asyncio.sleep(0)
    await task.stop()
    await asyncio.sleep(1.2 * RESTART_SECONDS)
    assert len(task.times) == 2


async def test_a_cancelled_task_is_not_started_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after `stop_soon`, nor beside the one that was started meanwhile."""
    monkeypatch.setattr(background_task, "RESTART_SECONDS", 0.05)
    task = Failing([])
    task.start()
    await soon(task.works.wait())
    cancel_all_others()
    await until_restart_is_planned()
    task.stop_soon()
    await asyncio.sleep(0.1)
    assert len(task.times) == 1
    task.start()
    await asyncio.sleep(0)
    cancel_all_others()
    await until_restart_is_planned()
    await task.stop()
    task.start()
    await asyncio.sleep(0.1)
    assert len(task.times) == 3
    ended = task._task
    task.stop_soon()
    await asyncio.sleep(0.1)
    assert len(task.times) == 3
    assert ended is not None
    assert ended.cancelled()


class Stubborn(Failing):
    """Swallows its cancellation."""

    async def run_once(self) -> float:
        await super().run_once()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return 0.0


async def test_a_run_that_swallows_its_cancellation_is_the_last() -> None:
    task = Stubborn([])
    task.start()
    await soon(task.works.wait())
    async with asyncio.timeout(10):
        await task.stop()
    assert len(task.times) == 1


def test_tasks_that_fail_together_do_not_try_again_together() -> None:
    async def first_pauses() -> set[float]:
        return {Failing([])._pauses.next_seconds() for _ in range(10)}

    assert len(asyncio.run(first_pauses())) > 1


def test_the_end_of_an_event_loop_is_not_kept_up(caplog: pytest.LogCaptureFixture) -> None:
    """It cancels all tasks too, also that of a `Durable` which was never closed."""

    async def leave_open() -> None:
        Failing([]).start()
        await asyncio.sleep(0)

    began = time.monotonic()
    asyncio.run(leave_open())
    assert time.monotonic() - began < RESTART_SECONDS
    assert caplog.messages == []


def cancel_all_others() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def until_restart_is_planned() -> None:
    """A few iterations of the loop: the task ends, and then its callback runs."""
    for _ in range(3):
        await asyncio.sleep(0)
