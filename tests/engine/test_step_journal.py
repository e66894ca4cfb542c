"""The journal of one step: which actions it asks for, what it records, and what it answers from its store."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pytest

from gen_durable import Abort, RetryPolicy
from gen_durable.encryption import PayloadContext, PayloadEncryption
from gen_durable.engine import step_journal
from gen_durable.engine.step_journal import Actions, CallActivity, SleepBeforeRetry, StepJournal
from gen_durable.errors import DecodeError, InputError, TooLarge
from gen_durable.store.journal import ActivityRecord, Fence, JournalStatementBuilder
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement


class PlaceCodec:
    """Reverses a payload, and rejects one that was moved."""

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        return context.as_bytes() + b"|" + data[::-1]

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        place, _, payload = data.partition(b"|")
        if place != context.as_bytes():
            raise ValueError(f"moved from {place!r} to {context.as_bytes()!r}")
        return payload[::-1]


encryption = PayloadEncryption(PlaceCodec(), "s", read_unencrypted=False)


def journal(stored: object = None, **options: Any) -> StepJournal:
    text = None if stored is None else msgspec.json.encode(stored).decode()
    return StepJournal(JournalStatementBuilder(Schema()), Fence(7, 1, 0), text, **options)


class Performed:
    """Performs the actions of a journal without a database: calls activities, and keeps records and pauses."""

    def __init__(self) -> None:
        self.records: list[ActivityRecord] = []
        self.pauses: list[float] = []

    def perform(self, actions: Actions) -> Any:
        try:
            action = next(actions)
            while True:
                try:
                    answer = self._perform_one(action)
                except Exception as error:
                    action = actions.throw(error)
                else:
                    action = actions.send(answer)
        except StopIteration as end:
            return end.value

    def _perform_one(self, action: Any) -> Any:
        match action:
            case CallActivity(fn, args):
                return fn(*args)
            case SleepBeforeRetry(pause):
                self.pauses.append(pause)
            case Statement():
                self.records.append(ActivityRecord(*cast(Any, action.args[3:])))
        return None


def run(one: StepJournal, name: str, fn: Any, *args: Any, **options: Any) -> tuple[Any, Performed]:
    done = Performed()
    given = {"retry": None, "kwargs": {}, **options}
    return done.perform(one.activity_actions(name, fn, args, **given)), done


def fail(done: Performed, one: StepJournal, error: Exception, retry: RetryPolicy | None) -> list[str | None]:
    """Run an activity that always raises. Returns the errors that were recorded."""

    def raises() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        done.perform(one.activity_actions("fails", raises, (), {}, retry=retry))
    assert raised.value is error
    return [record.error for record in done.records]


def test_attempts_are_numbered_and_bounded() -> None:
    """As many calls as the policy allows; each has the next number, and its number among the tries."""
    one, done = journal(), Performed()
    policy = RetryPolicy(attempts=3, backoff=lambda n: n + 1)
    assert fail(done, one, ValueError("no"), policy) == ["ValueError: no"] * 3
    assert [(record.number, record.attempt) for record in done.records] == [(1, 0), (2, 1), (3, 2)]
    assert done.pauses == [1, 2]
    _, after = run(one, "other", lambda: 1)
    assert [(record.number, record.attempt) for record in after.records] == [(4, 0)]


def test_without_a_backoff_the_pauses_are_the_default_ones() -> None:
    done = Performed()
    fail(done, journal(), ValueError("no"), RetryPolicy(attempts=4))
    assert [0.1 * 2**n <= pause <= 0.11 * 2**n for n, pause in enumerate(done.pauses)] == [True] * 3


@pytest.mark.parametrize("error", [Abort("never"), TooLarge("large"), InputError("wrong")])
def test_some_errors_are_not_retried(error: Exception) -> None:
    """An abort, and the errors of the library, which would come again."""
    done = Performed()
    assert len(fail(done, journal(), error, RetryPolicy(attempts=6, on=(Exception, Abort)))) == 1
    assert done.pauses == []


def test_only_errors_that_the_policy_names_are_retried() -> None:
    policy = RetryPolicy(attempts=3, on=ConnectionError, backoff=lambda n: 0)
    assert len(fail(Performed(), journal(), ConnectionError("no line"), policy)) == 3
    assert len(fail(Performed(), journal(), ValueError("no"), policy)) == 1


def test_a_policy_with_a_next_step_is_refused_before_the_call() -> None:
    """`then=` is for steps."""
    done = Performed()
    with pytest.raises(InputError, match=r"activity 'call': RetryPolicy\(then=\) is for steps"):
        done.perform(journal().activity_actions("call", int, (), {}, retry=RetryPolicy(then="refund")))
    assert done.records == []


def test_an_activity_that_failed_may_be_run_again_by_the_same_execution() -> None:
    """Its name is free again; its attempts are counted on."""
    one, done = journal(), Performed()
    fail(done, one, ValueError("no"), None)
    value, again = run(one, "fails", lambda: 5)
    assert value == 5
    assert [(record.number, record.attempt, record.result) for record in again.records] == [(2, 1, "5")]


def test_a_stored_journal_answers_and_is_counted_on() -> None:
    """Finished activities answer, with null for a result of null; failed ones count as tries; numbers go on."""
    stored = {"activities": [[3, "paid", True, '"yes"'], [4, "sent", False, None], [6, "empty", True, None]]}
    one = journal(stored)
    assert one.size == len('"yes"') + len("null")
    assert [run(one, "paid", Performed)[0], run(one, "empty", Performed)[0]] == ["yes", None]
    _, done = run(one, "sent", lambda: "done")
    assert [(record.number, record.attempt) for record in done.records] == [(7, 1)]
    assert one.size == len('"yes"') + len("null") + len('"done"')


def test_a_page_of_activities_is_added() -> None:
    """The number of the last one is returned, after which the next page begins."""
    one = journal({"activities": True})
    assert one.load_activities_page('[[1,"a",true,"1"],[2,"b",false,null]]') == 2
    assert one.load_activities_page('[[3,"b",true,"22"]]') == 3
    assert (run(one, "a", Performed)[0], run(one, "b", Performed)[0], one.size) == (1, 22, 3)


def test_results_up_to_the_bound_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_journal, "MAX_CLAIM_PART", 20)
    one = journal()
    assert run(one, "a", lambda: "x" * 8)[0] == "x" * 8
    assert run(one, "b", lambda: "y" * 8)[0] == "y" * 8
    assert one.size == 20
    with pytest.raises(TooLarge, match="continue in another step"):
        run(one, "c", lambda: 1)
    assert one.size == 20


def test_the_duration_is_that_of_the_call() -> None:
    """And the call began as long ago."""
    _, done = run(journal(), "slow", lambda: time.sleep(0.02))
    (record,) = done.records
    assert 0.02 <= record.duration == record.ago < 10


def test_the_step_gets_the_value_that_a_later_execution_gets() -> None:
    """As the database gives it back: the keys of an object are in the order of jsonb."""
    one = journal()
    first, done = run(one, "call", lambda: {"long": 1, "b": 2, "a": 3})
    assert list(first) == ["a", "b", "long"]
    one.restart_for_next_execution()
    assert list(run(one, "call", Performed)[0]) == ["a", "b", "long"]
    assert done.records[0].result == '{"a":3,"b":2,"long":1}'


def test_keyword_arguments_reach_the_function() -> None:
    value, done = run(journal(), "call", lambda a, *, b: [a, b], 1, kwargs={"b": 2})
    assert value == [1, 2]
    assert done.records[0].parameters == '{"a":1,"b":2}'


def test_an_activity_must_be_a_function() -> None:
    """Not a coroutine, for example: it could be awaited only once."""
    with pytest.raises(InputError, match=r"activity 'call': ctx\.run takes a function and its arguments, got int"):
        run(journal(), "call", 5)


@dataclass(frozen=True)
class Paid:
    amount: int


def pay(amount: int) -> Paid:
    return Paid(amount)


class Payer:
    def __call__(self, amount: int) -> Paid:
        return Paid(amount)


def pay_oddly(amount: int) -> Any:
    return {"amount": amount}


pay_oddly.__annotations__["return"] = "NoSuchType"


@pytest.mark.parametrize(
    ("fn", "args", "value"),
    [
        (pay, (1,), Paid(1)),
        (functools.partial(pay, 1), (), Paid(1)),
        (functools.partial(functools.partial(pay), 1), (), Paid(1)),
        (Payer(), (1,), Paid(1)),
        (Payer().__call__, (1,), Paid(1)),
        (Paid, (1,), {"amount": 1}),
        (pay_oddly, (1,), {"amount": 1}),
    ],
)
def test_a_result_has_the_type_of_the_annotation(fn: Any, args: tuple[Any, ...], value: object) -> None:
    """Of a function, a partial and an object that can be called; plain JSON without an annotation that resolves."""
    one = journal()
    assert run(one, "call", fn, *args)[0] == value
    one.restart_for_next_execution()
    assert run(one, "call", fn, *args)[0] == value


def test_activities_are_encrypted_for_their_place() -> None:
    """Parameters, result and error, each for its instance, visit and field."""

    def field(part: str) -> str:
        return f"activity/3/call/{part}"

    one = journal(visit=3, encryption=encryption)
    assert run(one, "call", lambda a: a + 1, 1)[1].records[0].error is None
    failed = Performed()
    with pytest.raises(ValueError, match="no"):
        failed.perform(one.activity_actions("other", int, ("no",), {}, retry=None))
    assert failed.records[0].result is None
    assert failed.records[0].error is not None
    assert "no" not in failed.records[0].error
    (record,) = run(journal(visit=3, encryption=encryption), "call", lambda a: a + 1, 1)[1].records
    assert encryption.decrypt(record.parameters, 7, field("parameters")) == '{"a":1}'
    assert record.result is not None
    assert encryption.decrypt(record.result, 7, field("result")) == "2"
    stored = {"activities": [[1, "call", True, record.result]]}
    again = journal(stored, visit=3, encryption=encryption)
    assert (run(again, "call", Performed)[0], again.size) == (2, 1)
    with pytest.raises(DecodeError):
        journal(stored, visit=4, encryption=encryption)


def test_a_checkpoint_is_encrypted_and_read_back() -> None:
    one = journal(encryption=encryption)
    (statement,) = list(one.save_checkpoint_actions({"at": 2}))
    assert isinstance(statement, Statement)
    text = str(statement.args[3])
    assert encryption.decrypt(text, 7, "checkpoint") == '{"at":2}'
    assert one.checkpoint == b'{"at":2}'
    again = journal({"checkpoint": [1, 1, msgspec.Raw(text.encode())]}, encryption=encryption)
    assert again.checkpoint == b'{"at":2}'
    list(again.clear_checkpoint_actions())
    assert again.checkpoint is None
