"""Outcomes and `Start`: what they keep, and a clear word for every way to make them wrongly."""

from __future__ import annotations

import gc
import inspect
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from gen_durable.context import Context
from gen_durable.errors import GenDurableError, InputError, InvalidOutcome, TooLarge
from gen_durable.jobs import job
from gen_durable.machines import Machine, step
from gen_durable.outcomes import UNCHANGED, Await, Done, Fail, Next, Outcome, Retry, ScheduleChildren
from gen_durable.signals import Signal
from gen_durable.starts import LIVE, Start, StartOptions
from gen_durable.validation import MAX_CHILDREN


@dataclass(frozen=True)
class Order:
    id: int


class Shop(Machine, queue="shop"):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)

    @step
    def ship(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(2)

    async def helper(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(3)


@job(queue="mail")
async def send(text: str) -> int:
    return len(text)


shop = Shop()
order = Order(1)
nothing = cast(Context, None)
paid = Signal("paid", int)
go = Signal("go")


def test_next_keeps_what_it_was_told() -> None:
    """The step by its spec, the state as it is, options checked and turned into seconds."""
    plain = Next(shop.ship, order)
    assert (plain.step.label, plain.state) == ("Shop.ship", order)
    assert (plain.delay, plain.queue, plain.priority) == (0.0, None, None)
    assert plain.partition_key is UNCHANGED
    assert plain.run_ahead
    full = Next(
        shop.ship, order, delay=timedelta(seconds=2), queue="q", priority=-1, partition_key="p", run_ahead=False
    )
    assert (full.delay, full.queue, full.priority, full.partition_key, full.run_ahead) == (2.0, "q", -1, "p", False)
    assert Next(shop.ship, order, partition_key=None).partition_key is None


@pytest.mark.parametrize(
    "options",
    [
        {"delay": timedelta(seconds=-1)},
        {"delay": "5"},
        {"queue": "a b"},
        {"queue": ""},
        {"priority": 40000},
        {"partition_key": ""},
        {"partition_key": "a\0"},
    ],
)
def test_options_of_next_are_checked(options: dict[str, Any]) -> None:
    """A bad option is the step's error, raised where it was written."""
    with pytest.raises(InputError):
        Next(shop.ship, order, **options)


def test_a_called_step_is_recognised_and_closed() -> None:
    """The coroutine of a step that was called is closed, so that no "never awaited" warning hides the message."""
    for make in (
        lambda called: Next(called, order),
        lambda called: Await(go, then=called, state=order),
        lambda called: ScheduleChildren([], then=called, state=order),
        lambda called: Start(called, order),
    ):
        coroutine = shop.start(order, nothing)
        with pytest.raises(GenDurableError, match=r"got a step that was called: pass the step itself"):
            make(cast(Any, coroutine))
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            coroutine.send(None)
    gc.collect()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (shop.ship(order, nothing), "got the outcome of a step that was called"),
        (shop.helper, "got 'helper', which is not a step: decorate it with @step or @job"),
        (len, "got 'len', which is not a step"),
        ("ship", "takes a step such as self.ship, Checkout.start or a @job, got str"),
        (None, "takes a step such as .*, got NoneType"),
        (shop, "takes a step such as .*, got Shop"),
        (Shop, "got 'Shop', which is not a step"),
    ],
)
def test_what_is_no_step_is_named(wrong: Any, words: str) -> None:
    """The message says what was passed in the step's place."""
    with pytest.raises(InvalidOutcome, match=f"^Next {words}"):
        Next(wrong, order)
    with pytest.raises(InputError, match=f"^Start {words}"):
        Start(wrong, order)


def test_retry() -> None:
    """The same step again, at once by default."""
    assert Retry(order).delay == 0.0
    assert Retry(order, delay=timedelta(minutes=1)).delay == 60.0
    assert Retry(order).state is order
    assert Retry(order, delay=1.5).delay == 1.5
    for wrong in (-5, True, timedelta(seconds=-1)):
        with pytest.raises(InputError, match=r"Retry\(delay=\)"):
            Retry(order, delay=cast(Any, wrong))


def test_await_takes_one_signal_or_several() -> None:
    """Names are sorted and without repetition; without `then` the same step runs again."""
    one = Await(paid, state=order)
    assert (one.names, one.then, one.state, one.timeout) == (("paid",), None, order, None)
    several = Await([paid, go, Signal("paid", int)], then=shop.ship, state=order, timeout=timedelta(hours=1))
    assert (several.names, several.timeout) == (("go", "paid"), 3600.0)
    assert several.then is Shop.__gen_durable__.steps["ship"]
    assert Await({paid}, state=order).names == Await((s for s in [paid]), state=order).names


@pytest.mark.parametrize(
    ("signals", "words"),
    [
        ([], "Await needs at least one signal"),
        (set[Any](), "Await needs at least one signal"),
        ("paid", "Await takes Signal values, got str: declare Signal"),
        ([paid, "go"], "Await takes Signal values, got str"),
        (5, "Await takes Signal values, got int"),
        (None, "Await takes Signal values, got NoneType"),
    ],
)
def test_await_needs_signals(signals: Any, words: str) -> None:
    """Nothing to wait for, or something that is no signal, is refused."""
    with pytest.raises(InvalidOutcome, match=words):
        Await(signals, state=order)


@pytest.mark.parametrize("timeout", ["5", float("nan"), timedelta(seconds=-1)])
def test_the_timeout_of_await_is_checked(timeout: Any) -> None:
    """It is a timedelta or a number of seconds, and not negative."""
    with pytest.raises(InputError, match=r"Await\(timeout=\)"):
        Await(paid, state=order, timeout=timeout)


def test_children_are_taken_from_any_iterable() -> None:
    """A generator will do (it is drawn later), and an empty batch is allowed: the parent goes straight on."""
    outcome = ScheduleChildren((Start(send, t) for t in "ab"), then=shop.ship, state=order)
    assert [child.state for child in outcome.children] == ["a", "b"]
    assert outcome.then.label == "Shop.ship"
    assert ScheduleChildren([], then=shop.ship, state=order).children == ()


@pytest.mark.parametrize(
    ("children", "words"),
    [
        ([Shop.start], r"takes Start\(...\) values, got function: write Start\(Pack.pack, state\)"),
        ([send], r"takes Start\(...\) values, got Job"),
        (Start(send, "a"), r"takes a list of Start\(...\) values, got Start"),
        (5, r"takes a list of Start\(...\) values, got int"),
        ("ab", r"takes Start\(...\) values, got str"),
    ],
)
def test_children_are_starts(children: Any, words: str) -> None:
    """A step that was not wrapped in `Start`, or a `Start` that was not put in a list, is pointed out."""
    with pytest.raises(InvalidOutcome, match=f"^ScheduleChildren {words}"):
        ScheduleChildren(children, then=shop.ship, state=order)


def test_the_number_of_children_is_bounded() -> None:
    """A hundred thousand at once are fine; one more is refused, with a way out."""
    one = Start(send, "a")
    assert len(ScheduleChildren([one] * MAX_CHILDREN, then=shop.ship, state=order).children) == MAX_CHILDREN
    with pytest.raises(InvalidOutcome, match="got 100,001 children, at most 100,000 are allowed at once"):
        ScheduleChildren([one] * (MAX_CHILDREN + 1), then=shop.ship, state=order)


def test_done_and_stop() -> None:
    """A result may be left out; a reason is text, or an exception told by its type and words."""
    assert Done().result is None
    assert Done({"a": 1}).result == {"a": 1}
    assert Fail("why").reason == "why"
    assert Fail(ValueError("no stock")).reason == "ValueError: no stock"
    assert Fail(KeyError()).reason == "KeyError"


def test_outcomes_do_not_show_what_they_carry() -> None:
    """A log line with an outcome in it holds no payload."""
    for outcome in (Next(shop.ship, order), Retry(order), Await(paid, state=order), Done("CANARY"), Fail("CANARY")):
        assert repr(outcome) == f"{type(outcome).__name__}(...)"
    assert repr(Start(Shop.start, order)) == "Start(Shop.start)"


def test_start_takes_the_queue_of_its_machine() -> None:
    """Unless it is given one."""
    assert Start(Shop.start, order).queue == "shop"
    assert Start(send, "a").queue == "mail"
    assert Start(Shop.start, order, queue="other").queue == "other"
    assert Start(shop.start, cast(Any, order)).step is Start(Shop.start, order).step


def test_start_keeps_what_it_was_told() -> None:
    """Keys as bytes, delays as seconds, moments as they are."""
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    start = Start(
        Shop.start, order, priority=-5, partition_key="p", schedule_at=moment, unique_key="ü", unique_scope=["runnable"]
    )
    assert (start.priority, start.partition_key, start.schedule_at) == (-5, "p", moment)
    assert (start.unique_key, start.unique_scope) == ("ü".encode(), ("runnable",))
    assert Start(Shop.start, order, delay=timedelta(seconds=3)).delay == 3.0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"priority": 40000}, InputError),
        ({"queue": "a b"}, InputError),
        ({"partition_key": b"p"}, InputError),
        ({"delay": timedelta(seconds=-1)}, InputError),
        ({"delay": "5"}, InputError),
        ({"schedule_at": datetime(2030, 1, 1)}, InputError),  # noqa: DTZ001  # the refused case
        ({"delay": timedelta(1), "schedule_at": datetime(2030, 1, 1, tzinfo=UTC)}, InputError),
        ({"unique_key": ""}, InputError),
        ({"unique_key": "x" * 513}, TooLarge),
        ({"unique_key": 5}, InputError),
    ],
)
def test_options_of_start_are_checked(options: dict[str, Any], error: type[GenDurableError]) -> None:
    """Before the database is touched."""
    with pytest.raises(error):
        Start(Shop.start, order, **options)


def test_the_options_that_are_passed_on_are_those_of_start() -> None:
    """The TypedDict that types them has the same names and types as `Start` itself."""
    parameters = inspect.signature(Start.__init__).parameters.values()
    taken = {p.name: p.annotation for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert {name: hint.__forward_arg__ for name, hint in StartOptions.__annotations__.items()} == taken


def test_the_scope_of_a_unique_key() -> None:
    """By default the key is held while the instance lives; without a key there is no scope; repetitions fall away."""
    assert Start(send, "a", unique_key="k").unique_scope == LIVE
    assert Start(send, "a").unique_scope == ()
    start = Start(send, "a", unique_key="k", unique_scope=["done", "runnable", "done"])
    assert start.unique_scope == ("done", "runnable")


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (["runnable", "sleeping"], "unique_scope names 'sleeping', which is no status: use some of runnable"),
        (["done"], "unique_scope must include 'runnable'"),
        ([], "unique_scope must include 'runnable'"),
        ("runnable", "unique_scope names 'r'"),
        (7, "unique_scope takes a list of statuses, got int"),
    ],
)
def test_bad_scopes_are_refused(scope: Any, words: str) -> None:
    """A key that is not taken from the start could only be refused later, when nobody can be told."""
    with pytest.raises(InputError, match=words):
        Start(send, "a", unique_key="k", unique_scope=scope)
