"""Each outcome becomes one row of a flush: what is written for it, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Fail,
    Limit,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)
from gen_durable.engine import outcome_encoder
from gen_durable.engine.outcome_encoder import EncodedOutcome, advance_claim, encode_cancel_outcome, encode_outcome
from gen_durable.errors import EncodeError, InvalidOutcome, TooLarge
from gen_durable.limits import LimitNames
from gen_durable.outcomes import UNCHANGED
from gen_durable.signals import Received
from gen_durable.starts import to_step_spec
from gen_durable.store.types import Claim

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAID, SHIPPED = Signal("paid", int), Signal("shipped", int)


@job
async def leaf(value: str) -> str:
    return value


class Plain(Machine, history="off"):
    """Keeps no history, so that `extra` has only what the outcome needs."""

    @step
    async def begin(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(0)

    @step
    def threaded(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(0)

    @step
    async def other(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(0)

    @step(limit=("api", "acme"))
    async def limited(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(0)


class Recorded(Machine):
    @step
    async def begin(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(0)


class Detailed(Machine, history="states"):
    @step
    async def begin(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(0)


PLAIN = Plain()


def claim_of(**columns: Any) -> Claim:
    fields: dict[str, Any] = {
        "id": 1, "machine": "Plain", "version": 1, "step": "begin", "state": "0", "attempt": 0, "epoch": 2, "seq": 3,
        "queue": "default", "priority": 0, "partition_key": None, "unique_key": None, "parent_id": None, "awaits": None,
    }  # fmt: skip
    return Claim(**{**fields, **columns})


def encode(
    outcome: object,
    *,
    ran: Any = Plain.begin,
    awaited: tuple[Received, ...] = (),
    may_continue: bool = True,
    error: Exception | None = None,
    **columns: Any,
) -> EncodedOutcome:
    ctx = Context(1, "Plain", 1, "begin", 0, "default", 0, None, None, None, "w", 2, 3, awaited=awaited)
    spec = to_step_spec(ran, "test")
    return encode_outcome(claim_of(**columns), spec, ctx, outcome, may_continue=may_continue, error=error)


def extra_of(encoded: EncodedOutcome) -> Any:
    return None if encoded.commit.extra is None else json.loads(encoded.commit.extra)


def starts(count: int) -> Iterator[Start[Any]]:
    return (Start(leaf, str(n)) for n in range(count))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"queue": "default"},
        {"priority": 3},
        {"partition_key": "acme"},
        {"partition_key": UNCHANGED},
        {"limit": []},
        {"delay": 0},
    ],
)
def test_a_next_that_changes_nothing_else_keeps_its_claim(options: dict[str, Any]) -> None:
    """Values that the row has already are not written, and the claim runs on."""
    encoded = encode(Next(PLAIN.other, 7, **options), priority=3, partition_key="acme")
    commit = encoded.commit
    assert (commit.kind, commit.step, commit.value, commit.delay, commit.extra) == (
        "continue",
        "other",
        "7",
        None,
        None,
    )
    assert (commit.id, commit.epoch, commit.seq) == (1, 2, 3)
    assert (encoded.outcome, encoded.state, encoded.queue) == ("Next", 7, options.get("queue"))


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        ({"queue": "mail"}, {"queue": "mail"}),
        ({"priority": 0}, {"priority": 0}),
        ({"partition_key": "b"}, {"partition_key": "b", "left": ["partition/acme"]}),
        ({"partition_key": None}, {"partition_key": None, "left": ["partition/acme"]}),
        ({"limit": Limit("l", "p", weight=2)}, {"limits": [["l", "p", 2]]}),
        ({"delay": 1}, None),
        ({"run_ahead": False}, None),
    ],
)
def test_a_next_that_changes_the_row_gives_its_claim_up(options: dict[str, Any], extra: object) -> None:
    """The row is picked again, under its new queue, gates or time."""
    encoded = encode(Next(PLAIN.other, 7, **options), priority=3, partition_key="acme")
    assert (encoded.commit.kind, extra_of(encoded)) == ("next", extra)
    assert (encoded.commit.delay, encoded.queue) == (options.get("delay"), options.get("queue"))


def test_a_row_without_a_partition_leaves_none() -> None:
    assert extra_of(encode(Next(PLAIN.other, 7, partition_key="b"))) == {"partition_key": "b"}


def test_a_claim_that_must_not_run_on_is_given_up() -> None:
    assert encode(Next(PLAIN.other, 7), may_continue=False).commit.kind == "next"


@pytest.mark.parametrize("limited", [None, "", "old"])
def test_the_limits_of_the_next_step_replace_those_of_the_step_that_ran(limited: str | None) -> None:
    """A step without limits after one with limits has an empty list: the slot is given up."""
    cleared: dict[str, Any] | None = None if limited is None else {"limits": []}
    acme: dict[str, Any] = {"limits": [["api", "acme", 1]]}
    assert extra_of(encode(Next(PLAIN.limited, 7), limited=limited)) == acme
    assert extra_of(encode(Next(PLAIN.other, 7), limited=limited)) == cleared
    assert extra_of(encode(Next(PLAIN.limited, 7, limit=[]), limited=limited)) == cleared
    awaited = {"awaits": ["paid"], "seen": []}
    assert extra_of(encode(Await(PAID, then=PLAIN.limited, state=7), limited=limited)) == {**acme, **awaited}
    assert extra_of(encode(Await(PAID, then=PLAIN.other, state=7), limited=limited)) == {**(cleared or {}), **awaited}
    for then, limits in ((PLAIN.limited, acme), (PLAIN.other, cleared or {})):
        encoded = encode(ScheduleChildren([], then=then, state=7), limited=limited)
        assert extra_of(encoded) == {**limits, "children": []}


@pytest.mark.parametrize("then", [None, PLAIN.begin])
def test_an_await_of_the_same_step_keeps_step_and_limits(then: Any) -> None:
    encoded = encode(Await([SHIPPED, PAID], then=then, state=7, timeout=5), limited="old")
    commit = encoded.commit
    assert (commit.kind, commit.step, commit.value, commit.delay) == ("await", None, "7", 5)
    assert extra_of(encoded) == {"awaits": ["paid", "shipped"], "seen": []}


def test_an_await_of_the_same_step_names_the_signals_that_it_has_seen() -> None:
    """Only those that it waits for again: they do not wake it. Nothing is consumed."""
    awaited = (Received(4, "paid", b"1", NOW), Received(5, "shipped", b"1", NOW))
    encoded = encode(Await(PAID, state=7), awaited=awaited)
    assert (encoded.commit.step, encoded.consumed) == (None, ())
    assert extra_of(encoded) == {"awaits": ["paid"], "seen": [4]}


def test_an_await_of_another_step_consumes_the_signals_that_woke_its_step() -> None:
    awaited = (Received(4, "paid", b"1", NOW), Received(5, "shipped", b"1", NOW))
    encoded = encode(Await(PAID, then=PLAIN.other, state=7), awaited=awaited)
    assert (encoded.commit.step, encoded.consumed) == ("other", (4, 5))
    assert extra_of(encoded) == {"awaits": ["paid"], "seen": [], "consumed": [4, 5]}


@pytest.mark.parametrize("outcome", [Next(PLAIN.other, 7), ScheduleChildren([], then=PLAIN.other, state=7)])
def test_a_step_that_goes_on_consumes_the_signals_that_it_has_awaited(outcome: Outcome[int]) -> None:
    encoded = encode(outcome, awaited=(Received(4, "paid", b"1", NOW), Received(5, "paid", b"1", NOW)))
    assert encoded.consumed == (4, 5)
    assert extra_of(encoded)["consumed"] == [4, 5]
    assert "consumed" not in (extra_of(encode(outcome)) or {})


def test_a_retry_keeps_its_signals_and_writes_a_state_only_if_it_has_one() -> None:
    awaited = (Received(4, "paid", b"1", NOW),)
    changed = encode(Retry(7, delay=5), awaited=awaited).commit
    assert (changed.kind, changed.step, changed.value, changed.delay, changed.extra) == ("retry", None, "7", 5, None)
    same = encode(Retry(UNCHANGED), error=ValueError("no")).commit
    assert (same.kind, same.value, same.delay, same.error) == ("retry", None, 0, "ValueError: no")


def test_an_end_names_its_parent() -> None:
    """The flush locks the parent's row before it counts its children."""
    done, failed = (encode(outcome, parent_id=9).commit for outcome in (Done(1), Fail("no\x00")))
    assert (done.kind, done.value, done.error, done.parent) == ("done", "1", None, 9)
    assert (failed.kind, failed.value, failed.parent) == ("fail", None, 9)
    assert failed.error is not None
    assert "\x00" not in failed.error
    for outcome in (
        Next(PLAIN.other, 7),
        Retry(7),
        Await(PAID, state=7),
        ScheduleChildren([], then=PLAIN.begin, state=1),
    ):
        assert encode(outcome, parent_id=9).commit.parent is None


def test_the_reason_of_a_failure_takes_precedence_over_the_error_of_the_step() -> None:
    assert encode(Fail("because"), error=ValueError("no")).commit.error == "because"
    assert encode(Fail("because")).commit.error == "because"
    assert encode(Next(PLAIN.other, 7), error=ValueError("no")).commit.error == "ValueError: no"
    assert encode(Next(PLAIN.other, 7)).commit.error is None


@pytest.mark.parametrize(
    ("ran", "attempt", "ran_step", "extra"),
    [
        (Plain.begin, 2, None, None),
        (Recorded.begin, 0, "begin", None),
        (Recorded.begin, 2, "begin", None),
        (Detailed.begin, 0, "begin", {"with_state": True}),
        (Detailed.begin, 2, "begin", {"with_state": True}),
    ],
)
def test_an_outcome_has_what_the_history_of_its_machine_keeps(
    ran: Any, attempt: int, ran_step: str | None, extra: object
) -> None:
    cancelled = encode_cancel_outcome(claim_of(attempt=attempt, parent_id=9), to_step_spec(ran, "test"), "too late")
    for encoded in (encode(Done(1), ran=ran, attempt=attempt), cancelled):
        assert (encoded.commit.ran_step, extra_of(encoded)) == (ran_step, extra)
    commit = cancelled.commit
    assert (commit.kind, commit.error, commit.parent, cancelled.outcome) == ("cancel", "too late", 9, "Cancel")
    assert (commit.id, commit.epoch, commit.seq) == (1, 2, 3)


@pytest.mark.parametrize("returned", [None, 7, Next])
def test_a_value_that_is_no_outcome_is_refused(returned: object) -> None:
    with pytest.raises(InvalidOutcome, match=r"step Plain\.begin returned (NoneType|int|type): return Next, Retry"):
        encode(returned)


def test_a_step_of_another_machine_is_refused() -> None:
    with pytest.raises(InvalidOutcome, match=r"Plain\.begin goes on to Recorded\.begin, a step of another machine"):
        encode(Next(Recorded().begin, 7))


def test_a_barrier_has_only_what_differs_from_the_default() -> None:
    """Without options, every child is waited for, and for as long as it takes."""
    plain = encode(ScheduleChildren([], then=PLAIN.other, state=7))
    assert (plain.commit.kind, plain.commit.step, plain.commit.value, plain.commit.delay) == (
        "children", "other", "7", None,
    )  # fmt: skip
    assert extra_of(plain) == {"children": []}
    options: dict[str, Any] = {"join": 2, "timeout": 5, "on_child_failure": "wake", "cancel_rest": True}
    full = encode(ScheduleChildren(starts(3), then=PLAIN.other, state=7, **options))
    assert full.commit.delay == 5
    assert {name: value for name, value in extra_of(full).items() if name != "children"} == {
        "join": 2, "on_failure": "wake", "cancel_rest": True,
    }  # fmt: skip


def test_a_child_is_written_with_all_its_options() -> None:
    limits: LimitNames = [Limit("l", "p", weight=2)]
    full = Start(
        leaf, "s", queue="q", priority=4, partition_key="p", delay=3, unique_key=b"\x01k",
        unique_scope=["runnable", "done"], limit=limits, group=("tenant", "acme"), metadata={"order": 42},
    )  # fmt: skip
    later = Start(leaf, "t", schedule_at=NOW)
    first, second = extra_of(encode(ScheduleChildren([full, later], then=PLAIN.other, state=7)))["children"]
    scope = first.pop("unique_scope")
    assert (scope[0], scope[-1], sorted(scope[1:-1].split(","))) == ("{", "}", ["done", "runnable"])
    assert first == {
        "fsm": "leaf", "version": 1, "step": "run", "state": "s", "queue": "q", "priority": 4, "partition_key": "p",
        "delay": 3, "schedule_at": None, "unique_key": "016b", "limits": [["l", "p", 2]], "group_key": full.group,
        "metadata": {"order": 42},
    }  # fmt: skip
    assert second == {
        "fsm": "leaf", "version": 1, "step": "run", "state": "t", "queue": "default", "priority": 0,
        "partition_key": None, "delay": 0, "schedule_at": second["schedule_at"], "unique_key": None,
        "unique_scope": "{}", "limits": None, "group_key": None, "metadata": None,
    }  # fmt: skip
    assert datetime.fromisoformat(second["schedule_at"]) == NOW


@pytest.mark.parametrize("kind", ["children", "spawn"])
def test_as_many_as_a_chunk_go_in_one_statement(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also as many bytes. One more is left to the next chunk."""
    monkeypatch.setattr(outcome_encoder, "CHUNK", 3)

    def encode_starts(count: int) -> EncodedOutcome:
        if kind == "spawn":
            return encode(Done(0, spawn=list(starts(count))))
        return encode(ScheduleChildren(starts(count), then=PLAIN.other, state=7))

    few = encode_starts(3)
    assert (few.remaining_starts, few.commit.many_children, len(extra_of(few)[kind])) == (None, None, 3)
    assert not few.encode_next_chunk()
    assert encode_starts(4).remaining_starts is not None
    monkeypatch.setattr(outcome_encoder, "CHUNK", 1000)
    monkeypatch.setattr(outcome_encoder, "CHUNK_BYTES", 9)  # a state has three bytes
    assert encode_starts(3).remaining_starts is None
    assert encode_starts(4).remaining_starts is not None


def test_a_generator_of_a_step_in_a_thread_is_not_iterated_on_the_loop() -> None:
    """Its children are encoded in the thread, later. A list, or a generator of an `async def` step, is encoded here."""
    for children, ran, is_later in (
        (starts(2), Plain.threaded, True),
        (list(starts(2)), Plain.threaded, False),
        (starts(2), Plain.begin, False),
    ):
        encoded = encode(ScheduleChildren(children, then=PLAIN.other, state=7), ran=ran)
        assert (encoded.remaining_starts is not None, encoded.commit.many_children is not None) == (is_later, is_later)
        assert encoded.encode_next_chunk() is False
        many = encoded.commit.many_children
        assert len(extra_of(encoded)["children"] if many is None else many.encoded) == 2


def test_many_children_keep_their_unique_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The insert is ordered by them."""
    monkeypatch.setattr(outcome_encoder, "CHUNK", 1)
    children = [Start(leaf, "a", unique_key="k"), Start(leaf, "b"), Start(leaf, "c", unique_key="l")]
    encoded = encode(ScheduleChildren(children, then=PLAIN.other, state=7))
    while encoded.encode_next_chunk():
        pass
    many = encoded.commit.many_children
    assert many is not None
    assert many.keys == [b"k".hex().encode(), None, b"l".hex().encode()]
    assert [json.loads(one)["state"] for one in many.encoded] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["children", "spawn"])
def test_the_bytes_of_all_chunks_are_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_encoder, "CHUNK", 1)

    def encode_four() -> int:
        outcome: Outcome[int] = Done(0, spawn=list(starts(4)))
        if kind == "children":
            outcome = ScheduleChildren(starts(4), then=PLAIN.other, state=7)
        encoded = encode(outcome)
        while encoded.encode_next_chunk():
            pass
        many = encoded.commit.many_children
        return many.size if many is not None else 4 * len('"0"')

    size = encode_four()
    monkeypatch.setattr(outcome_encoder, "MAX_CHILDREN_BYTES", size)
    assert encode_four() == size
    monkeypatch.setattr(outcome_encoder, "MAX_CHILDREN_BYTES", size - 1)
    with pytest.raises(TooLarge, match=f"are over {size - 1:,} bytes of JSON"):
        encode_four()


def test_the_children_of_a_generator_are_counted_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_encoder, "CHUNK", 1)
    monkeypatch.setattr("gen_durable.outcomes.MAX_CHILDREN", 3)
    encoded = encode(ScheduleChildren(starts(4), then=PLAIN.other, state=7))
    with pytest.raises(InvalidOutcome, match="got 4 children, at most 3"):
        encoded.encode_next_chunk()
    with pytest.raises(InvalidOutcome, match=r"takes Start\(\.\.\.\) values, got int"):
        encode(ScheduleChildren(iter([7]), then=PLAIN.other, state=7))  # type: ignore[arg-type]


def test_a_child_whose_state_cannot_be_encoded_is_named_as_such() -> None:
    """The error says that it is not the state of the parent; its cause says the rest."""
    with pytest.raises(EncodeError, match=r"^an instance cannot be started: .*leaf") as raised:
        encode(ScheduleChildren([Start(leaf, object())], then=PLAIN.other, state=7))  # type: ignore[arg-type]
    assert isinstance(raised.value.__cause__, EncodeError)


def test_a_kept_claim_is_as_if_it_had_been_picked_for_the_next_step() -> None:
    """Counters and what belonged to the visit are gone, consumed signals too; the others stay."""
    paid, shipped = Received(4, "paid", b"1", NOW), Received(5, "shipped", b"1", NOW)
    claim = claim_of(
        attempt=1,
        step_errors=2,
        crashes=3,
        journal="[]",
        awaits=["paid"],
        inbox=(paid, shipped),
        children=None,
        visit=3,
    )
    claim.step_journal = object()
    encoded = encode(Next(PLAIN.other, 7), awaited=(paid,))
    advance_claim(claim, encoded)
    assert (claim.step, claim.state, claim.seq, claim.visit, claim.epoch) == ("other", "7", 4, 4, 2)
    assert (claim.attempt, claim.step_errors, claim.crashes) == (0, 0, 0)
    assert (claim.journal, claim.step_journal, claim.awaits, claim.children) == (None, None, None, ())
    assert claim.inbox == (shipped,)
    encoded.commit.value, encoded.plain_state = '"encrypted"', "8"
    advance_claim(claim, encoded)
    assert (claim.state, claim.seq, claim.inbox) == ("8", 5, (shipped,))
