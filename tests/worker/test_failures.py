"""Every failure leaves the class of its exception and its frames: on the row, in the history, in the log."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from tests.support.engine import Engine, Opening, seconds

from gen_durable import (
    Abort,
    Context,
    Done,
    Fail,
    Failed,
    Finished,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryPolicy,
    Start,
    job,
    step,
)
from gen_durable.instances import Instance

HERE = "tests.worker.test_failures"


class Declined(Exception):
    """An error of the user."""


def charge(card: str) -> None:
    raise Declined(f"declined {card}")


class Shop(Machine):
    """Fails in all ways."""

    @step
    async def raises(self, card: str, ctx: Context) -> Outcome[str]:
        charge(card)
        return Done("x")

    @step
    def raises_in_thread(self, card: str, ctx: Context) -> Outcome[str]:
        charge(card)
        return Done("x")

    @step(transactional=True)
    async def raises_in_transaction(self, card: str, ctx: Context) -> Outcome[str]:
        charge(card)
        return Done("x")

    @step
    async def raises_in_activity(self, card: str, ctx: Context) -> Outcome[str]:
        await ctx.run("charge", charge_later, card)
        return Done("x")

    @step(timeout=timedelta(milliseconds=50))
    async def hangs(self, card: str, ctx: Context) -> Outcome[str]:
        await wait_for_ever()
        return Done("x")

    @step
    async def exits(self, card: str, ctx: Context) -> Outcome[str]:
        raise SystemExit(card)

    @step
    async def gathers(self, card: str, ctx: Context) -> Outcome[str]:
        async with asyncio.TaskGroup() as group:
            group.create_task(charge_later(card))
            group.create_task(charge_later("other"))
        return Done("x")

    @step
    async def fails_with_error(self, card: str, ctx: Context) -> Outcome[str]:
        try:
            charge(card)
        except Declined as error:
            return Fail(error)
        return Done("x")

    @step
    async def fails_with_text(self, card: str, ctx: Context) -> Outcome[str]:
        return Fail(f"no {card}")

    @step
    async def forgets_await(self, card: str, ctx: Context) -> Outcome[str]:
        return charge_later(card)  # type: ignore[return-value]

    @step
    async def forgets_await_in_done(self, card: str, ctx: Context) -> Outcome[Any]:
        return Done(charge_later(card))

    @step
    async def handled(self, card: str, ctx: Context) -> Outcome[str]:
        charge(card)
        return Done("x")

    @step
    async def on_error_raises(self, card: str, ctx: Context) -> Outcome[str]:
        charge(card)
        return Done("x")

    @step
    async def end(self, card: str, ctx: Context) -> Outcome[str]:
        return Done("done")

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        match ctx.step:
            case "handled":
                return Next(self.end, state)
            case "on_error_raises":
                raise KeyError(state)
            case _:
                return Fail(error)


class Silent(Shop, history="off"):
    """Keeps no history."""


async def charge_later(card: str) -> None:
    await asyncio.sleep(0)
    charge(card)


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


@job(retry=RetryPolicy(attempts=2, backoff=lambda _: 0))
async def burn(card: str) -> None:
    charge(card)


@job
async def abort(card: str) -> None:
    raise Abort(card)


@job(retry=RetryPolicy(attempts=1))
async def forget(card: str) -> Any:
    return charge_later(card)


def functions(text: str | None) -> list[str]:
    """The names of the functions in a traceback."""
    return [line.rpartition(" in ")[2] for line in (text or "").splitlines() if line.lstrip().startswith("File ")]


CASES: dict[str, tuple[str | None, list[str]]] = {
    "raises": (f"{HERE}.Declined", ["Shop.raises", "charge"]),
    "raises_in_thread": (f"{HERE}.Declined", ["Shop.raises_in_thread", "charge"]),
    "raises_in_transaction": (f"{HERE}.Declined", ["Shop.raises_in_transaction", "charge"]),
    "hangs": ("gen_durable.errors.StepTimeout", ["Shop.hangs", "wait_for_ever", "Event.wait"]),
    "exits": ("gen_durable.errors.StepCancelled", ["Shop.exits"]),
    "fails_with_error": (f"{HERE}.Declined", ["Shop.fails_with_error", "charge"]),
    "fails_with_text": (None, []),
    "forgets_await": ("gen_durable.errors.InvalidOutcome", []),
    "forgets_await_in_done": ("gen_durable.errors.InvalidOutcome", []),
}


async def fail(e: Engine, start: str, machine: type[Shop] = Shop) -> Instance:
    async with e.worker(machine()):
        handle = await e.app.insert(getattr(machine, start), "4111")
        assert isinstance(await e.end(handle), Failed)
        return await handle.get()


@pytest.mark.parametrize("start", CASES)
async def test_on_the_row_and_in_the_history(engine: Opening, start: str) -> None:
    """Frames of the user's code only, and not a word of the message."""
    error_type, names = CASES[start]
    async with engine() as e:
        one = await fail(e, start)
        assert (one.error_type, functions(one.traceback)) == (error_type, names)
        assert one.traceback is None or names
        assert "4111" not in (one.traceback or "")
        (last,) = await e.app.history(one.id)
        assert (last.error, last.error_type, last.traceback) == (one.last_error, one.error_type, one.traceback)


async def test_without_a_history_the_row_has_the_last(engine: Opening) -> None:
    async with engine() as e:
        one = await fail(e, "raises", Silent)
        assert (one.error_type, functions(one.traceback)) == (f"{HERE}.Declined", ["Shop.raises", "charge"])
        assert await e.app.history(one.id) == []


async def test_through_an_activity(engine: Opening) -> None:
    async with engine() as e:
        one = await fail(e, "raises_in_activity")
        names = functions(one.traceback)
        assert (names[0], names[-2:]) == ("Shop.raises_in_activity", ["charge_later", "charge"])


async def test_a_group_names_its_parts(engine: Opening) -> None:
    async with engine() as e:
        one = await fail(e, "gathers")
        assert one.last_error == (
            "ExceptionGroup: 2 errors (unhandled errors in a TaskGroup): Declined: declined 4111, "
            "Declined: declined other"
        )
        assert one.error_type == "ExceptionGroup"
        assert functions(one.traceback)[0] == "Shop.gathers"
        assert functions(one.traceback).count("charge") == 2
        assert f"{HERE}.Declined" in (one.traceback or "")


@pytest.mark.parametrize("start", ["forgets_await", "forgets_await_in_done"])
async def test_a_missing_await_is_named(engine: Opening, start: str) -> None:
    async with engine() as e:
        one = await fail(e, start)
        assert one.last_error == f"InvalidOutcome: step Shop.{start} returned a coroutine: did you forget `await`?"


async def test_a_missing_await_of_a_job_is_named(engine: Opening) -> None:
    async with engine() as e, e.worker(forget):
        ending = await e.end(await e.app.insert(forget, "4111"))
        assert isinstance(ending, Failed)
        assert "returned a coroutine: did you forget `await`?" in ending.error


async def test_what_on_error_raises_follows_what_the_step_raised(engine: Opening) -> None:
    async with engine() as e:
        one = await fail(e, "on_error_raises")
        assert one.error_type == f"{HERE}.Declined"
        assert functions(one.traceback) == ["Shop.on_error_raises", "charge", "Shop.on_error"]
        assert (one.traceback or "").endswith("\nKeyError")
        assert "During handling of the above exception" in (one.traceback or "")


async def test_an_error_that_was_handled_is_in_the_history_only(engine: Opening) -> None:
    async with engine() as e, e.worker(Shop()):
        handle = await e.app.insert(Shop.handled, "4111")
        assert await e.end(handle) == Finished(handle.id, "done")
        one = await handle.get()
        assert (one.last_error, one.error_type, one.traceback) == (None, None, None)
        first, last = await e.app.history(one.id)
        assert (first.error_type, functions(first.traceback)) == (f"{HERE}.Declined", ["Shop.handled", "charge"])
        assert (last.error_type, last.traceback) == (None, None)


async def test_jobs(engine: Opening) -> None:
    """Each attempt in the history; a row that waits for its next attempt has the last."""
    async with engine() as e, e.worker(burn, abort):
        handles = await e.app.insert_many([Start(burn, "4111"), Start(abort, "4111")])
        for handle in handles:
            await e.end(handle)
        burnt, aborted = [await handle.get() for handle in handles]
        assert (burnt.error_type, functions(burnt.traceback)) == (f"{HERE}.Declined", ["burn", "charge"])
        assert (aborted.error_type, functions(aborted.traceback)) == ("gen_durable.retry_policy.Abort", ["abort"])
        assert [t.error_type for t in await e.app.history(burnt.id)] == [f"{HERE}.Declined"] * 2
        listed = [one async for one in e.app.list_all(status="failed")]
        assert [(one.error_type is None, one.traceback) for one in listed] == [(False, None)] * 2


async def test_a_retried_step_shows_its_error_until_it_goes_on(engine: Opening) -> None:
    gate = asyncio.Event()

    class Patient(Machine):
        @step
        async def start(self, card: str, ctx: Context) -> Outcome[str]:
            if ctx.attempt == 0:
                charge(card)
            await gate.wait()
            return Done("x")

        async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
            return Retry(state)

    async with engine() as e, e.worker(Patient()):
        handle = await e.app.insert(Patient.start, "4111")
        row = await e.rows.until(handle, status="executing", attempt=1)
        assert (row["error_type"], functions(row["last_traceback"])[-1]) == (f"{HERE}.Declined", "charge")
        gate.set()
        await e.end(handle)
        row = await e.rows.row(handle)
        assert (row["last_error"], row["error_type"], row["last_traceback"]) == (None, None, None)


async def test_the_log_has_frames_at_debug(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """Of steps and of `on_error`, by the logger gen_durable.errors; without messages. By default it logs nothing."""
    caplog.set_level(logging.INFO, "gen_durable")
    async with engine() as e:
        await fail(e, "raises")
        assert [r for r in caplog.records if r.name == "gen_durable.errors"] == []
        caplog.set_level(logging.DEBUG, "gen_durable.errors")
        one = await fail(e, "on_error_raises")
        logged = [r.getMessage() for r in caplog.records if r.name == "gen_durable.errors"]
        assert len(logged) == 2
        assert logged[0].startswith(f"instance {one.id}: Shop.on_error_raises raised {HERE}.Declined\n  Traceback ")
        assert functions(logged[0]) == ["Shop.on_error_raises", "charge"]
        assert logged[1].startswith(f"instance {one.id}: on_error of Shop.on_error_raises raised KeyError\n")
        assert "4111" not in "".join(logged)


async def test_a_deep_recursion(engine: Opening) -> None:
    """Its traceback is cut, and can be stored."""

    class Deep(Machine, retry=RetryPolicy(attempts=1)):
        @step
        async def start(self, n: int, ctx: Context) -> Outcome[int]:
            return self.dive(n)

        def dive(self, n: int) -> Outcome[int]:
            return self.dive(n + 1)

    async with engine() as e, e.worker(Deep()):
        handle = await e.app.insert(Deep.start, 0)
        ending = await handle.wait(seconds(20))
        assert isinstance(ending, Failed)
        one = await handle.get()
        assert one.error_type == "RecursionError"
        assert len((one.traceback or "").encode()) <= 8000
        assert "frames are left out" in (one.traceback or "")
