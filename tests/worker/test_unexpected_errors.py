"""An error that no part of a worker expects: the loop that meets it reports it and goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.engine import BRIEF, Opening, soon
from tests.worker.test_dead_letters import Told
from tests.worker.test_options_lease import dead_claim, double, rest

from gen_durable import Finished
from gen_durable.core.services import services_of
from gen_durable.store.statements import StatementBuilder


def failing(original: Callable[..., Any], times: int) -> Callable[..., Any]:
    """The function, after so many calls that raise."""
    left = [times]

    def call(*args: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise TypeError("secret payload")
        return original(*args, **options)

    return call


async def test_the_heartbeat_thread_survives(
    engine: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that runs for several leases keeps its claim, although the first heartbeat met an error of Python."""
    monkeypatch.setattr(StatementBuilder, "heartbeat", failing(StatementBuilder.heartbeat, 1))
    async with engine() as e, e.worker(rest, **BRIEF):
        handle = await e.app.insert(rest, 2.5)
        assert await e.end(handle) == Finished(handle.id, "rested")
        assert (await e.rows.row(handle))["claims"] == 1
    assert "heartbeats fail (TypeError)" in caplog.text
    assert "secret" not in caplog.text


async def test_a_dead_letter_that_cannot_be_read_does_not_keep_the_others(
    engine: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three instances the hook is called for two."""
    async with engine() as e:
        told = Told()
        for _ in range(3):
            await dead_claim(e, crashes=2)
        monkeypatch.setattr(StatementBuilder, "get", failing(StatementBuilder.get, 1))
        async with e.worker(double, max_crashes=3, on_dead_letter=told.hear, **BRIEF):
            await told.until(2)


async def test_a_cascade_that_fails_says_so(
    engine: Opening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The background task of a cascade does not end in silence."""
    monkeypatch.setattr(
        StatementBuilder, "cancel_listed_descendants", failing(StatementBuilder.cancel_listed_descendants, 1)
    )
    async with engine() as e:
        cascader = services_of(e.app).notifier.cascader
        cascader.start_cascade(7)
        while cascader._tasks:
            await soon(next(iter(cascader._tasks.values())))
    assert "cascade of instance 7 failed (TypeError)" in caplog.text
    assert "secret" not in caplog.text
