"""The context and what can be seen of an instance: typed views on raw rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from msgspec.structs import replace

from gen_durable.context import Child, Context
from gen_durable.errors import InputError, InvalidOutcome, UnreadableSignal
from gen_durable.instances import Instance, Status
from gen_durable.jobs import job
from gen_durable.machines import Machine, step
from gen_durable.outcomes import Done, Outcome
from gen_durable.signals import Received, Signal
from gen_durable.testing.step_contexts import StepExecutionStub

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Paid:
    amount: int


class Pack(Machine):
    @step
    async def pack(self, sku: str, ctx: Context) -> Outcome[Paid]:
        return Done(Paid(1))


@job
def weigh(sku: str) -> float:
    return 0.5


paid = Signal("paid", Paid)
go = Signal("go")


def received(id_: int, name: str, payload: str) -> Received:
    return Received(id_, name, payload.encode(), NOW)


def child(id_: int, machine: str, status: Status, result: str | None) -> Child:
    return Child(id_, machine, 1, "x", status, None, result.encode() if result is not None else None, b"null")


INBOX = (received(1, "paid", '{"amount": 5}'), received(2, "go", "null"), received(3, "paid", '{"amount": 7}'))
CTX = Context(
    id=1,
    machine="Shop",
    version=1,
    step="start",
    attempt=2,
    queue="default",
    priority=0,
    partition_key=None,
    unique_key=None,
    parent_id=None,
    worker="w",
    claim=1,
    seq=1,
)


def with_execution(**values: Any) -> tuple[Context, StepExecutionStub]:
    execution = StepExecutionStub(step_errors=0, timed_out=True)
    return replace(CTX, inbox=INBOX, _claim=execution, **values), execution


def test_take_gives_each_awaited_payload_once_oldest_first() -> None:
    """Typed; None when none is left, it was not awaited, or it did not come."""
    ctx, execution = with_execution(awaited=(INBOX[0], INBOX[2]))
    assert execution.taken is None
    assert ctx.take(go) is None
    assert execution.taken == [], "a step that looks takes, also if there was nothing"
    assert [ctx.take(paid), ctx.take(paid), ctx.take(paid)] == [Paid(5), Paid(7), None]
    assert execution.taken == [INBOX[0].id, INBOX[2].id]


def test_take_all_takes_what_is_left_of_a_name() -> None:
    """Oldest first; signals that were not awaited stay."""
    ctx, execution = with_execution(awaited=(INBOX[0], INBOX[2]))
    assert ctx.take_all(go) == []
    assert ctx.take(paid) == Paid(5)
    assert (ctx.take_all(paid), ctx.take_all(paid)) == ([Paid(7)], [])
    assert execution.taken == [INBOX[0].id, INBOX[2].id]


def test_timed_out_needs_a_deadline_and_no_awaited_signal() -> None:
    assert with_execution()[0].timed_out
    assert not with_execution(awaited=INBOX[:1])[0].timed_out
    ctx, execution = with_execution()
    execution.timed_out = False
    assert not ctx.timed_out


def test_a_context_without_a_claim_says_how_to_make_one() -> None:
    with pytest.raises(InputError, match="make_context"):
        CTX.take(paid)


def test_a_payload_that_does_not_fit_is_unreadable() -> None:
    """The signal is named, the payload is not shown."""
    ctx, execution = with_execution(awaited=(received(1, "paid", '{"amount": "CANARY"}'),))
    with pytest.raises(UnreadableSignal, match="signal 'paid': stored JSON does not fit Paid") as caught:
        ctx.take(paid)
    assert execution.taken == []
    assert [(fault.id, fault.name) for fault in caught.value.faults] == [(1, "paid")]
    assert "CANARY" not in str(caught.value)


def test_take_all_names_every_payload_that_does_not_fit() -> None:
    """All are rejected together, and none of the others is taken."""
    awaited = (received(1, "paid", "[]"), received(2, "paid", '{"amount": 2}'), received(3, "paid", "1"))
    ctx, execution = with_execution(awaited=awaited)
    with pytest.raises(UnreadableSignal) as caught:
        ctx.take_all(paid)
    assert [fault.id for fault in caught.value.faults] == [1, 3]
    assert execution.taken == []


def test_results_are_those_of_the_done_children_of_a_machine() -> None:
    """Typed by the step or job; failed and cancelled children have none."""
    ctx = replace(
        CTX,
        _children=(
            child(1, "Pack", Status.DONE, '{"amount": 1}'),
            child(2, "Pack", Status.FAILED, None),
            child(3, "weigh", Status.DONE, "0.5"),
            child(4, "Pack", Status.CANCELLED, None),
            child(5, "Pack", Status.DONE, '{"amount": 2}'),
        ),
    )
    assert ctx.results(Pack.pack) == [Paid(1), Paid(2)]
    assert ctx.results(weigh) == [0.5]
    assert [c.id for c in ctx.children if not c.ok] == [2, 4]
    with pytest.raises(InvalidOutcome, match=r"ctx\.results takes a step"):
        ctx.results(cast(Any, "Pack"))


def test_a_childs_result_as_plain_values() -> None:
    """Without a type it is JSON."""
    assert child(1, "Pack", Status.DONE, '{"amount": 1}').result == {"amount": 1}
    assert child(1, "Pack", Status.FAILED, None).result is None


def test_nothing_shows_payloads() -> None:
    """What a log line may show of contexts, signals, children and instances are names and ids."""
    secret = b'"CANARY"'
    instance = Instance(
        id=1,
        machine="Shop",
        version=1,
        step="start",
        status=Status.DONE,
        queue="default",
        priority=0,
        partition_key=None,
        unique_key=None,
        awaits=(),
        attempt=0,
        crashes=0,
        claims=0,
        seq=0,
        last_error=None,
        locked_by=None,
        parent_id=None,
        children_pending=0,
        eligible_at=NOW,
        await_deadline=None,
        inserted_at=NOW,
        updated_at=NOW,
        finished_at=NOW,
        raw_state=secret,
        raw_result=secret,
        raw_metadata=b'{"a": "CANARY"}',
        blocked_on=None,
        due_at=None,
        error_type=None,
        traceback="CANARY",
        started_at=NOW,
    )
    full = replace(CTX, inbox=(Received(1, "paid", secret, NOW),))
    for value in (full, full.inbox[0], child(1, "Pack", Status.DONE, '"CANARY"'), instance):
        assert "CANARY" not in repr(value)
    assert (instance.state, instance.result) == ("CANARY", "CANARY")
    assert dataclasses.replace(instance, raw_result=None).result is None


def test_statuses_are_the_words_of_the_database() -> None:
    """Three of them are ends."""
    assert [status.value for status in Status if status.terminal] == ["done", "failed", "cancelled"]
    assert Status("runnable") is Status.RUNNABLE
    assert f"{Status.DONE}" == Status.DONE == "done"
