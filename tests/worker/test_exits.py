"""SystemExit and KeyboardInterrupt of user code end neither the worker nor its process, wherever they are raised."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.engine import BRIEF, Engine, Opening, seconds

from gen_durable import (
    Cancelled,
    Context,
    Done,
    Failed,
    Finished,
    Handle,
    Instance,
    Machine,
    Outcome,
    RetryPolicy,
    job,
    step,
)
from gen_durable.engine.executor import Executor
from gen_durable.telemetry import Event, InstanceDeadLettered, StepCommitted


class ExitsInStr(Exception):
    def __str__(self) -> str:
        raise SystemExit(7)

    __repr__ = __str__


@dataclass
class Picky:
    """A state that decodes where it is inserted, and ends the process where it is read."""

    exits: bool = False

    def __post_init__(self) -> None:
        if self.exits:
            raise SystemExit(7)


async def exit_at_once() -> str:
    sys.exit(7)


class Exits(Machine, retry=RetryPolicy(attempts=1)):
    @step
    async def fine(self, word: str, ctx: Context) -> Outcome[str]:
        return Done(word)

    @step
    async def decodes(self, state: Picky, ctx: Context) -> Outcome[str]:
        return Done("decoded")

    @step
    def awaits_activity(self, _: str, ctx: Context) -> Outcome[str]:
        return Done(ctx.sync.run("exit", exit_at_once))

    @step
    async def raises(self, _: str, ctx: Context) -> Outcome[str]:
        raise ExitsInStr

    @step
    async def waits(self, _: str, ctx: Context) -> Outcome[str]:
        await asyncio.sleep(60)
        return Done("never")

    async def on_cancel(self, state: Any, ctx: Context, reason: str) -> None:
        raise ExitsInStr


@job(retry=RetryPolicy(attempts=1))
async def fails(_: str) -> None:
    raise ExitsInStr


async def is_alive(e: Engine) -> bool:
    handle = await e.app.insert(Exits.fine, "alive")
    return await e.end(handle) == Finished(handle.id, "alive")


async def test_the_text_of_an_error(engine: Opening) -> None:
    """The default `on_error`, a job out of attempts, and an error of `on_cancel` store the kind of such an error."""
    async with engine() as e, e.worker(Exits(), fails, **BRIEF):
        for start in (Exits.raises, fails):
            handle: Handle[Any] = await e.app.insert(start, "x")
            ended = await e.end(handle)
            assert isinstance(ended, Failed)
            assert "ExitsInStr: (its str() raised)" in ended.error
        handle = await e.app.insert(Exits.waits, "x")
        await e.rows.until(handle, status="executing")
        await handle.cancel(reason="stop")
        ended = await e.end(handle)
        assert ended == Cancelled(handle.id, "stop (and then on_cancel raised ExitsInStr: (its str() raised))")
        assert await is_alive(e)


async def test_a_state_that_exits_when_it_is_decoded(engine: Opening) -> None:
    """Its row is put back with the reason."""
    async with engine() as e, e.worker(Exits(), **BRIEF):
        handle = await e.app.insert(Exits.decodes, Picky(), delay=seconds(3600))
        await e.rows.fetch(
            """update @.instances set state = '{"exits": true}', eligible_at = now() where id = $1""", handle.id
        )
        await e.rows.until(handle, status="runnable", last_error="SystemExit: 7")
        assert await is_alive(e)


async def test_an_activity_that_a_thread_awaits(engine: Opening) -> None:
    async with engine() as e, e.worker(Exits(), **BRIEF):
        handle = await e.app.insert(Exits.awaits_activity, "x")
        ended = await e.end(handle)
        assert isinstance(ended, Failed)
        assert "SystemExit: 7" in ended.error
        assert await is_alive(e)


async def test_a_telemetry_subscriber(engine: Opening) -> None:
    def subscriber(event: Event) -> None:
        if isinstance(event, StepCommitted):
            raise SystemExit(7)

    async with engine() as e, e.worker(Exits(), **BRIEF):
        e.app.events.subscribe(subscriber)
        assert await is_alive(e)
        assert await is_alive(e)


async def test_the_dead_letter_hook(engine: Opening) -> None:
    called: list[int] = []

    async def hook(instance: Instance) -> None:
        called.append(instance.id)
        raise SystemExit(7)

    async with engine() as e, e.worker(Exits(), max_crashes=3, on_dead_letter=hook, **BRIEF):
        for _ in range(2):
            handle = await e.app.insert(Exits.fine, "x", delay=seconds(3600))
            await e.rows.fetch(
                "update @.instances set status = 'executing', lease_expires_at = now() - interval '1 s', "
                "locked_by = 'dead', crashes = 2 where id = $1",
                handle.id,
            )
            await e.seen.until(InstanceDeadLettered, lambda event, i=handle.id: event.id == i)  # type: ignore[misc]

        async def both() -> bool:
            return len(called) == 2

        await e.rows.when(both)
        assert await is_alive(e)


async def test_a_step_that_the_engine_cannot_answer(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exit outside of any call of a step ends its task only: the row is put back."""

    def exits(*_: Any, **__: Any) -> Any:
        raise SystemExit(7)

    monkeypatch.setattr(Executor, "encode_cancel_outcome", exits)
    async with engine() as e, e.worker(Exits(), **{**BRIEF, "reap_interval": None}):
        handle = await e.app.insert(Exits.waits, "x")
        await e.rows.until(handle, status="executing")
        await handle.cancel(reason="stop")

        async def put_back() -> bool:
            return "SystemExit" in str((await e.rows.row(handle))["last_error"])

        await e.rows.when(put_back)
        assert await is_alive(e)
