"""ClaimRunner: what follows from the answer to an outcome, and from a step without one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gen_durable import Context, Done, Machine, Next, Outcome, Status, step
from gen_durable.engine.active_claim import ActiveClaim
from gen_durable.engine.claim_runner import ClaimEndReceiver, ClaimRunner
from gen_durable.engine.committer import COMMITTED, STALE, CommitResult
from gen_durable.engine.executor import UndecodableState
from gen_durable.engine.outcome_encoder import EncodedOutcome
from gen_durable.errors import LeaseLost, NoFreeThread, OutcomeRejected
from gen_durable.step_registry import Registry
from gen_durable.store.types import Claim, Commit
from gen_durable.telemetry import ClaimLost, Event, Events, StaleOutcome, StateUndecodable, StepCommitted
from gen_durable.worker_options import WorkerOptions


class Two(Machine, history_keep=20):
    @step
    async def one(self, n: int, ctx: Context) -> Outcome[int]:
        return Next(self.two, n)

    @step
    async def two(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)


class Parts:
    """Stands for all parts around a claim runner: notes what it calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.is_in_table = True

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, *arguments))

    def has_claim(self, _active: ActiveClaim) -> bool:
        return self.is_in_table


class Running:
    """A runner among parts that note its calls, with one claim."""

    def __init__(self, *, partition_key: str | None = None, crashes: int = 0) -> None:
        self.parts = Parts()
        self.seen: list[Event] = []
        events, around, registry = Events(), cast(Any, self.parts), Registry([Two()])
        events.subscribe(self.seen.append)
        self.runner = ClaimRunner(
            around,
            around,
            around,
            around,
            registry=registry,
            claims=around,
            slots=around,
            notifier=around,
            completions=around,
            options=WorkerOptions(),
            events=events,
            history_trimmer=around,
        )
        values: list[Any] = ["Two", 1, "one", "1", 0, 1, 0, "default", 0, partition_key, None, None, None]
        claim = Claim(1, *values)
        claim.crashes = crashes
        self.active = ActiveClaim(claim, registry.get_known_step("Two", 1, "one"), 0.0)

    def answer(self, result: Any, kind: str, *, queue: str | None = None, seq: int = 0, **fields: Any) -> list[Any]:
        """The calls that follow from an answer to an outcome of this kind."""
        commit = Commit(1, 1, seq, kind, began=10.0, took=2.5, **fields)
        self.runner.act_on_commit_result(self.active, EncodedOutcome(commit, "Some", queue=queue), 2.5, result)
        return self.parts.calls


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("done", (Status.DONE, "5", None)),
        ("fail", (Status.FAILED, None, "why")),
        ("cancel", (Status.CANCELLED, None, "why")),
    ],
)
def test_an_end_is_reported_to_local_waiters(kind: str, expected: tuple[Any, ...]) -> None:
    """With the moment at which its step returned: a waiter that came later may wait for a later end."""
    running = Running()
    calls = running.answer(COMMITTED, kind, value="5", error=None if kind == "done" else "why")
    assert calls == [("remove", running.active), ("report_end", 1, *expected, 12.5)]
    assert running.seen == [StepCommitted(1, "Two", 1, "one", "Some", 0, 2.5)]


def test_a_pick_is_planned_for_a_delayed_row_in_its_new_queue() -> None:
    assert Running().answer(COMMITTED, "next")[1:] == []
    assert Running().answer(COMMITTED, "next", delay=3.0)[1:] == [("schedule_pick_or_wake_others", "default", 3.0)]
    assert Running().answer(COMMITTED, "next", delay=3.0, queue="other")[1:] == [
        ("schedule_pick_or_wake_others", "other", 3.0)
    ]


def test_the_queue_of_a_partition_key_is_woken_when_it_is_free() -> None:
    assert Running(partition_key="k").answer(COMMITTED, "next")[1:] == [("wake", "default")]


def test_the_outcome_of_a_row_that_crashed_twice_is_counted() -> None:
    running = Running(crashes=2)
    assert running.answer(COMMITTED, "next")[1:] == [("allow_more_crashed_rows", running.active)]
    assert Running(crashes=1).answer(COMMITTED, "next")[1:] == []


def test_the_history_is_trimmed_at_every_hundredth_outcome() -> None:
    assert Running().answer(COMMITTED, "next", seq=99)[1:] == [("request_trim", 1, 100, 20)]
    assert Running().answer(COMMITTED, "next", seq=100)[1:] == []


def test_a_claim_that_was_meant_to_go_on_is_released_if_its_task_has_ended() -> None:
    running = Running()
    assert running.answer(COMMITTED, "continue") == [("release_soon", [running.active])]
    assert running.seen == []


def test_a_stale_outcome_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else follows: the row is another worker's."""
    running = Running(partition_key="k", crashes=2)
    assert running.answer(STALE, "done") == [("remove", running.active)]
    assert running.seen == [StaleOutcome(1, "Two", "one")]
    assert "instance 1: its outcome is stale" in caplog.text


def test_a_refused_cancel_outcome_puts_the_row_back_with_the_reason() -> None:
    running = Running()
    calls = running.answer(OutcomeRejected("refused by a trigger"), "cancel")
    assert calls == [("postpone_soon", running.active, "refused by a trigger")]


def test_a_kept_claim_goes_on_with_the_next_step() -> None:
    running = Running(crashes=1)
    running.runner._advance_to_next_step(running.active, EncodedOutcome(Commit(1, 1, 0, "continue", "two"), "Next"))
    assert running.parts.calls == []
    assert (running.active.claim.step, running.active.entry.spec.name) == ("two", "two")


def test_a_kept_claim_counts_its_crashes_and_its_history_at_each_outcome() -> None:
    """As a claim that has ended does."""
    running = Running(crashes=2)
    running.runner._advance_to_next_step(running.active, EncodedOutcome(Commit(1, 1, 99, "continue", "two"), "Next"))
    assert running.parts.calls == [("allow_more_crashed_rows", running.active), ("request_trim", 1, 100, 20)]


def test_a_claim_without_an_outcome_is_put_back_or_removed(caplog: pytest.LogCaptureFixture) -> None:
    """A row that was lost is not put back: it is another worker's."""
    running = Running()
    for error in (UndecodableState("no number"), NoFreeThread("all are busy"), LeaseLost("taken")):
        running.runner._end_without_outcome(running.active, error)
    assert running.parts.calls == [
        ("postpone_soon", running.active, "no number"),
        ("postpone_soon", running.active, "all are busy"),
        ("remove", running.active),
    ]
    assert running.seen == [StateUndecodable(1, "Two", "one", "no number"), ClaimLost(1, "Two", "one")]
    for text in ("of Two.one: no number", "is put back: all are busy", "the claim was lost during a step"):
        assert text in caplog.text


def test_an_engine_error_puts_the_row_back_with_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    """Its text may quote a payload."""
    running = Running()
    running.runner.log_engine_error_and_postpone(running.active, ValueError("secret"))
    assert running.parts.calls == [("postpone_soon", running.active, "an error of the engine: ValueError")]
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


def test_claims_that_have_not_begun_are_released() -> None:
    running = Running()
    running.runner.release_unstarted([running.active])
    assert running.parts.calls == [("release_soon", [running.active])]


def test_after_a_stray_cancellation_the_row_is_put_back(caplog: pytest.LogCaptureFixture) -> None:
    """And every queue is picked from: the transaction of the step may have committed."""
    running = Running()
    running.runner.recover_from_cancellation_by_other_code(running.active)
    assert running.parts.calls == [
        ("postpone_soon", running.active, "its task was cancelled outside of its step"),
        ("wake_local_workers",),
    ]
    assert "instance 1: code of Two.one cancelled its task outside of its step" in caplog.text


def test_after_a_stray_cancellation_an_unanswered_outcome_is_sent_once_more() -> None:
    """The row is not put back: only the answer tells where it is."""
    running = Running()
    encoded = running.active.unanswered = EncodedOutcome(Commit(1, 1, 0, "done", took=2.5), "Done")
    running.runner.recover_from_cancellation_by_other_code(running.active)
    ((name, commit, receiver),) = running.parts.calls
    assert name == "enqueue_or_flush_apart"
    assert commit is encoded.commit
    assert cast(Any, running.active).unanswered is None
    receiver.receive_commit_result(COMMITTED)
    assert running.seen == [StepCommitted(1, "Two", 1, "one", "Done", 0, 2.5)]


def test_a_stray_cancellation_after_the_claim_has_ended_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    running = Running()
    running.parts.is_in_table = False
    running.runner.recover_from_cancellation_by_other_code(running.active)
    assert (running.parts.calls, caplog.text) == ([], "")


async def test_a_second_answer_to_an_outcome_is_ignored() -> None:
    answers: list[object] = []
    runner = SimpleNamespace(act_on_commit_result=lambda *arguments: answers.append(arguments[-1]))
    receiver = ClaimEndReceiver(cast(Any, runner), cast(Any, None), cast(Any, None), 0.0)
    assert receiver.is_answered is False
    receiver.answered = asyncio.get_running_loop().create_future()
    receiver.receive_commit_result(COMMITTED)
    assert receiver.answered.done()
    receiver.receive_commit_result(STALE)
    assert (answers, receiver.is_answered) == ([COMMITTED], True)


async def test_an_answer_may_come_after_the_task_that_waited_for_it_was_cancelled() -> None:
    answers: list[object] = []
    runner = SimpleNamespace(act_on_commit_result=lambda *arguments: answers.append(arguments[-1]))
    receiver = ClaimEndReceiver(cast(Any, runner), cast(Any, None), cast(Any, None), 0.0)
    receiver.answered = asyncio.get_running_loop().create_future()
    receiver.answered.cancel()
    receiver.receive_commit_result(COMMITTED)
    assert answers == [COMMITTED]


async def test_a_claim_that_is_found_lost_does_not_wait_for_the_slot_that_it_has_lent() -> None:
    """Its next step does not run here."""
    running = Running()
    parts: Any = running.parts
    answer: asyncio.Future[CommitResult] = asyncio.get_running_loop().create_future()
    answer.set_result(STALE)

    async def execute(*_: object, **__: object) -> EncodedOutcome:
        return EncodedOutcome(Commit(1, 1, 0, "continue", "two"), "Next")

    def record_step_end_and_lend_slot(active: ActiveClaim) -> None:
        active.has_slot = False

    parts.execute_step, parts.commit, parts.record_step_end_and_lend_slot = (
        execute,
        lambda _: answer,
        record_step_end_and_lend_slot,
    )
    await running.runner.run_claim(running.active)
    assert parts.calls == [("remove", running.active)]
    assert not running.active.has_slot


@pytest.mark.parametrize(
    ("is_side_flush", "is_large", "waits"), [(False, False, False), (True, False, True), (False, True, True)]
)
async def test_only_a_large_outcome_or_claim_keeps_its_slot_until_the_commit(
    is_side_flush: bool, is_large: bool, waits: bool
) -> None:
    """Its task waits for the answer, so that no other step makes more of its kind meanwhile."""
    running, receivers = Running(), list[ClaimEndReceiver]()
    running.active.claim.is_large = is_large

    def enqueue_or_flush_apart(_commit: Commit, receiver: ClaimEndReceiver) -> bool:
        receivers.append(receiver)
        return is_side_flush

    cast(Any, running.parts).enqueue_or_flush_apart = enqueue_or_flush_apart
    encoded = EncodedOutcome(Commit(1, 1, 0, "done"), "Done")
    task = asyncio.create_task(running.runner._commit_claim_end(running.active, encoded, 1.0))
    await asyncio.sleep(0)
    assert task.done() is not waits
    receivers[0].receive_commit_result(COMMITTED)
    async with asyncio.timeout(10):
        await task
