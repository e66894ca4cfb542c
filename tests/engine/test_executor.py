"""The executor alone: what becomes of what a step, `on_error` and `on_cancel` return or raise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import pytest
from tests.support.engine import soon

from gen_durable import Context, Done, Machine, Next, Outcome, ScheduleChildren, Start, job, step
from gen_durable.core.claim_and_outcome_encryption import ClaimAndOutcomeEncryption
from gen_durable.encryption import PayloadContext, PayloadEncryption
from gen_durable.engine import executor as executor_module
from gen_durable.engine import outcome_encoder
from gen_durable.engine.executor import Executor, _absorb_cancellation_by_step, _exhaust_children_generator
from gen_durable.engine.outcome_encoder import advance_claim
from gen_durable.engine.thread_pool import ThreadPool
from gen_durable.step_registry import Registry, RunnableStep
from gen_durable.store.types import Claim

Body = Callable[[Any, Context], Awaitable[Any]]


class ReversingCodec:
    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        return data[::-1]

    decode = encode


@job
async def leaf(n: int) -> int:
    return n


class Scripted(Machine):
    """Does what the test says."""

    def __init__(self, body: Body) -> None:
        self.body = body

    @step
    async def work(self, state: str, ctx: Context) -> Outcome[Any]:
        return cast(Outcome[Any], await self.body(state, ctx))

    @step
    def in_thread(self, state: str, ctx: Context) -> Outcome[Any]:
        return cast(Outcome[Any], self.body(state, ctx))

    @step
    async def fails(self, state: str, ctx: Context) -> Outcome[Any]:
        raise ValueError("no")

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[Any]:
        return cast(Outcome[Any], await self.body(error, ctx))

    async def on_cancel(self, state: str, ctx: Context, reason: str) -> None:
        await self.body(state, ctx)


WORK: Any = Scripted.work


class Plain(Machine):
    @step
    async def work(self, state: int, ctx: Context) -> Outcome[int]:
        return Done(state)


@pytest.fixture
def threads() -> Iterator[ThreadPool]:
    pool = ThreadPool(2)
    yield pool
    pool.close()


def make_executor(threads: ThreadPool, encryption: PayloadEncryption | None = None) -> Executor:
    """An executor for steps that use neither children nor limits nor the journal."""
    absent = cast(Any, None)
    rows = None if encryption is None else ClaimAndOutcomeEncryption(encryption, absent, absent)
    return Executor("w", threads, absent, absent, absent, encryption=rows)


def claim_of(machine: Machine, name: str = "work", state: str = '"s"') -> tuple[Claim, RunnableStep]:
    spec = type(machine).__gen_durable__
    claim = Claim(7, spec.name, spec.version, name, state, 0, 1, 0, "default", 0, None, None, None, None)
    return claim, Registry([machine]).get_known_step(spec.name, spec.version, name)


async def go_on(_: Any, ctx: Context) -> Outcome[Any]:
    return Next(WORK, "next")


async def test_an_answer_after_the_step_ends_the_claim(threads: ThreadPool) -> None:
    """A `Next` of `on_error` keeps the claim if the step raised, but not after a refused outcome or a rollback."""
    claim, entry = claim_of(Scripted(go_on), "fails")
    encoded = await make_executor(threads).execute_step(claim, entry, may_continue=True)
    assert (encoded.commit.kind, encoded.commit.error) == ("continue", "ValueError: no")
    encoded = await make_executor(threads).answer_error_after_step(claim, entry, ValueError("later"))
    assert (encoded.commit.kind, encoded.commit.error) == ("next", "ValueError: later")


async def test_on_error_may_start_many_children(threads: ThreadPool) -> None:
    """All of them are encoded."""

    async def fan_out(error: Exception, ctx: Context) -> Outcome[Any]:
        return ScheduleChildren([Start(leaf, n) for n in range(2500)], then=WORK, state="")

    claim, entry = claim_of(Scripted(fan_out))
    encoded = await make_executor(threads).answer_error_after_step(claim, entry, ValueError("no"))
    assert encoded.commit.many_children is not None
    assert len(encoded.commit.many_children.encoded) == 2500


async def test_an_on_error_that_is_cancelled_from_inside(threads: ThreadPool) -> None:
    """The instance fails with both reasons. If the engine interrupts, the cancellation goes on instead."""

    async def cancelled(_: Any, ctx: Context) -> Outcome[Any]:
        raise asyncio.CancelledError

    claim, entry = claim_of(Scripted(cancelled), "fails")
    encoded = await make_executor(threads).execute_step(claim, entry, may_continue=True)
    reason = "ValueError: no (and then on_error raised StepCancelled: on_error was cancelled from inside)"
    assert (encoded.commit.kind, encoded.commit.error) == ("fail", reason)
    claim.is_interrupted = True
    with pytest.raises(asyncio.CancelledError):
        await make_executor(threads).execute_step(claim, entry, may_continue=True)


async def test_a_step_that_cancels_its_task_and_raises(threads: ThreadPool) -> None:
    """The cancellation that is left over does not reach `on_error`."""

    async def cancel_twice(given: Any, ctx: Context) -> Outcome[Any]:
        task = asyncio.current_task()
        assert task is not None
        if isinstance(given, str):
            task.cancel()
            raise asyncio.CancelledError
        await asyncio.sleep(0)
        return Done([str(given), task.cancelling()])

    claim, entry = claim_of(Scripted(cancel_twice))
    encoded = await asyncio.create_task(make_executor(threads).execute_step(claim, entry, may_continue=True))
    assert encoded.commit.kind == "done"
    assert encoded.commit.value == '["step Scripted.work was cancelled from inside",0]'


@pytest.mark.parametrize("knows_task", [True, False])
async def test_a_step_that_cancels_its_task_and_returns(threads: ThreadPool, knows_task: bool) -> None:
    """Its outcome counts, and the cancellation does not reach the engine."""

    async def cancel(state: Any, ctx: Context) -> Outcome[Any]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return Done(state)

    async def execute() -> tuple[str | None, int]:
        task = asyncio.current_task()
        assert task is not None
        claim, entry = claim_of(Scripted(cancel))
        executor = make_executor(threads)
        encoded = await executor.execute_step(claim, entry, may_continue=True, task=task if knows_task else None)
        await asyncio.sleep(0)
        return encoded.commit.value, task.cancelling()

    assert await asyncio.create_task(execute()) == ('"s"', 0)


async def test_what_a_def_step_returns_may_be_awaited(threads: ThreadPool) -> None:
    """A `def` that returns a coroutine: it is awaited on the event loop."""
    seen: list[int] = []

    async def remember(state: Any, ctx: Context) -> Outcome[Any]:
        seen.append(threading.get_ident())
        return Done(state)

    claim, entry = claim_of(Scripted(remember), "in_thread")
    encoded = await soon(make_executor(threads).execute_step(claim, entry, may_continue=True))
    assert (encoded.commit.kind, encoded.commit.value) == ("done", '"s"')
    assert seen == [threading.get_ident()]


async def test_a_state_is_kept_in_clear_for_the_next_step(threads: ThreadPool) -> None:
    """It is committed encrypted; `on_error` and `on_cancel` of the next step, on the same claim, can decode it."""
    seen: list[Any] = []

    async def body(state: Any, ctx: Context) -> Outcome[Any]:
        seen.append(state)
        return Next(WORK, "next")

    encryption = PayloadEncryption(ReversingCodec(), "schema", read_unencrypted=False)
    executor = make_executor(threads, encryption)
    claim, entry = claim_of(Scripted(body), state=encryption.encrypt('"first"', 7, "state"))
    encoded = await executor.execute_step(claim, entry, may_continue=True)
    assert encryption.decrypt(str(encoded.commit.value), 7, "state") == '"next"'
    advance_claim(claim, encoded)
    assert claim.state == '"next"'
    assert await executor.call_on_cancel(claim, entry, "stop", 5.0) == "stop"
    other, entry = claim_of(Scripted(body), state=encryption.encrypt('"other"', 7, "state"))
    assert await executor.call_on_cancel(other, entry, "stop", 5.0) == "stop"
    assert seen == ["first", "next", "other"]


async def test_other_tasks_run_while_many_children_are_encoded(
    threads: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each chunk."""
    monkeypatch.setattr(outcome_encoder, "CHUNK", 10)
    monkeypatch.setattr(executor_module, "YIELD_SECONDS", 0)
    ticks = 0

    async def fan_out(_: Any, ctx: Context) -> Outcome[Any]:
        return ScheduleChildren([Start(leaf, n) for n in range(100)], then=WORK, state="")

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    claim, entry = claim_of(Scripted(fan_out))
    await make_executor(threads).execute_step(claim, entry, may_continue=True)
    ticking.cancel()
    assert ticks >= 9


def test_a_generator_of_children_is_exhausted_up_to_one_more_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that too many are an error, and an endless generator ends."""
    monkeypatch.setattr(executor_module, "MAX_CHILDREN", 3)
    children = ScheduleChildren((Start(leaf, n) for n in range(100)), then=WORK, state="")
    _exhaust_children_generator(children)
    assert [start.state for start in cast(Any, children.children)] == [0, 1, 2, 3]


async def test_on_cancel_may_raise_a_timeout_of_its_own(threads: ThreadPool) -> None:
    async def times_out(_: Any, ctx: Context) -> None:
        raise TimeoutError("mine")

    claim, entry = claim_of(Scripted(times_out))
    reason = await make_executor(threads).call_on_cancel(claim, entry, "stop", 5.0)
    assert reason == "stop (and then on_cancel raised TimeoutError: mine)"


async def test_without_an_on_cancel_the_state_is_not_decoded(threads: ThreadPool) -> None:
    """An instance whose state cannot be read can be cancelled, with the reason as it was given."""
    claim, entry = claim_of(Plain(), state='"no number"')
    assert await make_executor(threads).call_on_cancel(claim, entry, "stop", 5.0) == "stop"


async def forget(claim: Claim, prepare: Callable[[asyncio.Task[Any]], None]) -> int:
    """Absorb a cancellation in a task of its own. Returns how many cancellations the task has left."""

    async def body() -> int:
        task = asyncio.current_task()
        assert task is not None
        prepare(task)
        await _absorb_cancellation_by_step(claim)
        return task.cancelling()

    task = asyncio.create_task(body())
    for _ in range(10):
        await asyncio.sleep(0)
    assert task.done()
    return await task


async def test_a_cancellation_is_forgotten_at_once() -> None:
    """One that still has to be delivered as well as one that the step has caught, however many there are."""

    def cancel_twice(task: asyncio.Task[Any]) -> None:
        task.cancel()
        task.cancel()

    async def caught() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        before = loop.time()
        waiting = asyncio.ensure_future(asyncio.sleep(0.5))
        await _absorb_cancellation_by_step(claim)
        assert not waiting.done(), f"it took {loop.time() - before} s"
        waiting.cancel()
        assert task.cancelling() == 0

    loop = asyncio.get_running_loop()
    claim, _ = claim_of(Plain())
    assert await forget(claim, cancel_twice) == 0
    await asyncio.create_task(caught())


async def test_an_interruption_by_the_engine_is_not_forgotten() -> None:
    """Also if it comes while a cancellation of the step is absorbed. A step that has returned keeps its outcome."""

    def interrupt_later(task: asyncio.Task[Any]) -> None:
        def interrupt() -> None:
            claim.is_interrupted = True
            task.cancel()

        task.cancel()
        asyncio.get_running_loop().call_soon(interrupt)

    claim, _ = claim_of(Plain())
    with pytest.raises(asyncio.CancelledError):
        await forget(claim, interrupt_later)
    assert await forget(claim, lambda _: None) == 0
