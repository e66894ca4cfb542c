"""Machines and steps: durable names, versions, inheritance, and every way to write them wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest

from gen_durable.context import Context
from gen_durable.errors import DefinitionError
from gen_durable.jobs import job
from gen_durable.machines import Machine, StepSpec, step
from gen_durable.outcomes import Await, Done, Fail, Next, Outcome
from gen_durable.signals import Signal
from gen_durable.starts import to_step_spec


@dataclass(frozen=True)
class Order:
    id: int


@dataclass(frozen=True)
class Bill:
    total: int


class Shop(Machine, queue="shop", version=3):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Next(self.end, Bill(order.id))

    @step(name="finish", aliases=["end", "last"], timeout=timedelta(seconds=2))
    def end(self, bill: Bill, ctx: Context) -> Outcome[int]:
        return Done(bill.total)


def spec_of(fn: Callable[..., Any]) -> StepSpec:
    return to_step_spec(fn, "test")


def test_a_machine_has_a_name_a_version_a_queue_and_steps() -> None:
    """What the class says is in its spec, steps in the order they are written."""
    spec = Shop.__gen_durable__
    assert (spec.name, spec.version, spec.queue, list(spec.steps)) == ("Shop", 3, "shop", ["start", "finish"])
    start, end = spec.steps.values()
    assert (start.label, start.name, start.aliases) == ("Shop.start", "start", ())
    assert (start.timeout, start.is_async) == (None, True)
    assert (end.label, end.name, end.aliases) == ("Shop.finish", "finish", ("end", "last"))
    assert (end.timeout, end.is_async) == (2.0, False)


def test_defaults() -> None:
    """The name of the class, version 1, the default queue."""

    class Small(Machine):
        pass

    spec = Small.__gen_durable__
    assert (spec.name, spec.version, spec.queue) == ("Small", 1, "default")


def test_a_durable_name_can_be_given() -> None:
    """Rows have the given name, so that the class can be renamed."""

    class Renamed(Machine, name="old.name"):
        pass

    assert Renamed.__gen_durable__.name == "old.name"


def test_steps_are_found_by_name_and_by_alias() -> None:
    """Live rows may still have an old name; nothing else is found."""
    spec = Shop.__gen_durable__
    assert spec.find_step("finish") is spec.find_step("end") is spec.find_step("last") is spec.steps["finish"]
    assert spec.find_step("start") is spec.steps["start"]
    for unknown in ("", "Start", "on_error", "__init__", "end "):
        assert spec.find_step(unknown) is None


def test_the_decorator_returns_what_it_was_given() -> None:
    """A step is still the plain method: it can be called in a unit test."""

    async def start(self: object, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)

    assert step(start) is start
    assert step(name="x")(start) is start
    outcome = Shop().end(Bill(7), cast(Any, None))
    assert isinstance(outcome, Done)
    assert outcome.result == 7


def test_state_and_result_types_come_from_the_annotations() -> None:
    """Each step has the codec of its own state; the result is that of `Outcome[R]`."""
    start, end = Shop.__gen_durable__.steps.values()
    assert start.state_codec.decode(b'{"id": 1}') == Order(1)
    assert end.state_codec.decode(b'{"total": 1}') == Bill(1)
    assert start.result_codec.decode(b"5") == 5
    assert start.state_codec is start.state_codec


class Loose(Machine):
    @step
    async def untyped(self, state, ctx):  # type: ignore[no-untyped-def]  # users may leave annotations out
        return Done(state)

    @step
    async def union(self, state: None, ctx: Context) -> Fail | Await[Any] | Next[Order]:
        return Fail("x")

    @step
    async def no_result(self, state: None, ctx: Context) -> Fail:
        return Fail("x")

    @step
    async def none(self, state: None, ctx: Context) -> Outcome[None]:
        return Done()


def test_annotations_may_be_missing_or_a_union_of_outcomes() -> None:
    """Without an annotation any JSON is taken; of a union, the first result that says something."""
    untyped, union, no_result, none = Loose.__gen_durable__.steps.values()
    assert untyped.state_codec.decode(untyped.state_codec.encode({"a": [1]})) == {"a": [1]}
    assert untyped.result_codec.decode(b"[1]") == [1]
    assert union.result_codec.decode(b'{"id": 1}') == Order(1)
    assert no_result.result_codec.decode(b"[1]") == [1]
    assert none.result_codec.decode(b"null") is None


def test_an_annotation_that_cannot_be_resolved_is_a_definition_error() -> None:
    """The message says which name is missing and where types must be."""

    class Local(Machine):
        @step
        async def start(self, state: Missing, ctx: Context) -> Outcome[int]:  # type: ignore[name-defined]  # noqa: F821  # the case
            return Done(1)

    with pytest.raises(DefinitionError, match=r"Local\.start has an annotation .*'Missing'.* at module level"):
        _ = Local.__gen_durable__.steps["start"].state_codec


def test_on_error_stops_by_default() -> None:
    """A call of it, by `super()`, fails the instance with the error as its reason."""
    outcome = Shop().on_error(Order(1), cast(Any, None), ValueError("no stock"))
    assert isinstance(outcome, Fail)
    assert outcome.reason == "ValueError: no stock"


def test_a_subclass_has_its_own_copies_of_inherited_steps() -> None:
    """`Child.start` and `Base.start` name different machines, and the base is left as it was."""
    before = dict(Shop.__gen_durable__.steps)

    class Child(Shop, version=9):
        @step
        async def extra(self, order: Order, ctx: Context) -> Outcome[int]:
            return Done(1)

    assert list(Child.__gen_durable__.steps) == ["start", "finish", "extra"]
    assert spec_of(Child.start).machine is Child.__gen_durable__
    assert spec_of(Shop.start).machine is Shop.__gen_durable__
    assert spec_of(Child().end).label == "Child.finish"
    assert spec_of(Child.end).aliases == ("end", "last")
    assert spec_of(Child.end).timeout == 2.0
    assert Child.__gen_durable__.queue == "default"
    assert Shop.__gen_durable__.steps == before
    assert Child.start.__qualname__.endswith("Child.start")
    assert Child.start.__doc__ == Shop.start.__doc__


async def test_an_inherited_step_leads_to_the_step_of_the_subclass() -> None:
    """`self.end` in a base class means the step of the machine that runs."""

    class Child(Shop):
        @step
        def end(self, bill: Bill, ctx: Context) -> Outcome[int]:
            inherited = super().end(bill, ctx)
            assert isinstance(inherited, Done)
            return Done(inherited.result + 1)

    outcome = await Child().start(Order(1), cast(Any, None))
    assert isinstance(outcome, Next)
    assert outcome.step.label == "Child.end"
    assert outcome.step.machine is Child.__gen_durable__
    last = Child().end(Bill(1), cast(Any, None))
    assert isinstance(last, Done)
    assert last.result == 2


def test_steps_can_come_from_a_mixin() -> None:
    """A class that is no machine may hold steps for several machines."""

    class Cancellable:
        @step
        async def cancel(self, order: Order, ctx: Context) -> Outcome[int]:
            return Done(0)

    class One(Cancellable, Machine):
        pass

    class Two(Cancellable, Machine):
        pass

    assert spec_of(One.cancel).machine is One.__gen_durable__
    assert spec_of(Two.cancel).machine is Two.__gen_durable__


def make(**methods: Any) -> type[Machine]:
    return cast("type[Machine]", type("Made", (Machine,), methods))


async def fine(self: object, order: Order, ctx: Context) -> Outcome[int]:
    return Done(1)


def test_two_steps_of_one_name_are_refused() -> None:
    """A row's text must mean one step: names and aliases together are unique."""

    def another() -> Any:
        async def one(self: object, order: Order, ctx: Context) -> Outcome[int]:
            return Done(1)

        return one

    for first, second in (
        (step(name="x"), step(name="x")),
        (step(name="x"), step(name="y", aliases=["x"])),
        (step(name="y", aliases=["x"]), step(name="x")),
        (step(name="y", aliases=["x"]), step(name="z", aliases=["x"])),
    ):
        with pytest.raises(DefinitionError, match="machine 'Made' has two steps with the name or alias 'x'"):
            make(one=first(another()), two=second(another()))


async def no_ctx(self: object, order: Order) -> Outcome[int]:
    return Done(1)


async def too_many(self: object, order: Order, ctx: Context, more: int) -> Outcome[int]:
    return Done(1)


async def with_default(self: object, order: Order, ctx: Context, more: int = 1) -> Outcome[int]:
    return Done(1)


async def keyword_only(self: object, order: Order, *, ctx: Context) -> Outcome[int]:
    return Done(1)


async def variadic(self: object, *args: Any) -> Outcome[int]:
    return Done(1)


@pytest.mark.parametrize("method", [no_ctx, too_many, with_default, keyword_only, variadic])
def test_a_step_takes_state_and_ctx(method: Any) -> None:
    """Any other signature is refused when the class is made."""
    with pytest.raises(DefinitionError, match=r"step Made\.\w+ must take \(self, state, ctx\), not \("):
        make(one=step(method))


@pytest.mark.parametrize("version", [0, -1, True, 1.0, "1", None, 2**31])
def test_versions_are_positive_ints(version: Any) -> None:
    """The version is a column of type int."""
    with pytest.raises(DefinitionError, match="the version of machine 'Bad' must be an int from 1 on"):
        type("Bad", (Machine,), {}, version=version)


@pytest.mark.parametrize(
    "options", [{"name": ""}, {"name": "a b"}, {"queue": ""}, {"queue": "a b"}, {"name": "x" * 201}]
)
def test_names_of_machines_and_queues_are_checked(options: dict[str, str]) -> None:
    """An empty name is refused as well, not replaced by the class's."""
    with pytest.raises(DefinitionError, match="must be 1 to 200 characters"):
        type("Bad", (Machine,), {}, **options)


@pytest.mark.parametrize(
    "options",
    [{"name": ""}, {"name": "a b"}, {"aliases": ["a b"]}, {"timeout": "5"}, {"timeout": timedelta(seconds=-1)}],
)
def test_options_of_steps_are_checked(options: dict[str, Any]) -> None:
    """A mistake in `@step(...)` is an error of the definition."""
    with pytest.raises(DefinitionError):
        step(**options)(fine)


def test_step_goes_on_functions_only() -> None:
    """On something else, such as a static method, it says so."""
    with pytest.raises(DefinitionError, match="@step decorates a method, got staticmethod: put @step outermost"):
        step(cast(Any, staticmethod(fine)))
    with pytest.raises(DefinitionError, match="@step decorates a method, got str"):
        step(cast(Any, "start"))


def test_a_step_inside_another_decorator_is_refused() -> None:
    """A static or class method of a step cannot take (self, state, ctx)."""

    async def inner(self: object, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)

    for wrapper in (staticmethod, classmethod):
        with pytest.raises(DefinitionError, match="@step decorates a method, but 'one' is a"):
            make(one=wrapper(cast(Any, step(inner))))


@dataclass(slots=True)
class Serviced(Machine, name="serviced", version=2, queue="slow"):
    """A decorator that makes the class a second time, without its arguments."""

    price: int

    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(self.price)


def test_a_class_that_is_made_again_keeps_its_arguments() -> None:
    """`@dataclass(slots=True)` loses neither name nor version nor queue, and the steps are those of the new class."""
    spec = Serviced.__gen_durable__
    assert (spec.name, spec.version, spec.queue) == ("serviced", 2, "slow")
    assert spec_of(Serviced(1).start).machine is spec


def test_a_step_of_another_machine_is_not_taken_over() -> None:
    """Naming another machine's step in a class body must not turn it into a step of this one."""
    with pytest.raises(DefinitionError, match=r"Made\.first is the step Shop\.start of another machine"):
        make(first=Shop.start)
    assert spec_of(Shop.start).machine is Shop.__gen_durable__


def test_a_class_may_hold_jobs_and_bound_steps() -> None:
    """Only functions are steps: what merely refers to one is left alone."""

    @job
    async def greet(name: str) -> str:
        return name

    made = make(greet=greet, other=Shop().start, one=step(fine))
    assert list(made.__gen_durable__.steps) == ["fine"]
    assert spec_of(greet).label == "greet.run"


def test_overriding_a_step_without_the_mark_is_refused() -> None:
    """A step does not silently vanish because the subclass forgot `@step`."""
    with pytest.raises(DefinitionError, match=r"Forgetful\.start overrides a step but is none"):

        class Forgetful(Shop):
            async def start(self, order: Order, ctx: Context) -> Outcome[int]:
                return Done(1)


def test_signals_are_declared_with_a_name_and_a_type() -> None:
    """A signal without a type carries nothing; its codec is made at first use."""
    go = Signal("go")
    paid = Signal("paid", Bill)
    assert go.codec.encode(None) == b"null"
    assert paid.codec.decode(b'{"total": 1}') == Bill(1)
    assert paid.codec is paid.codec
    assert repr(paid) == "Signal('paid')"
    with pytest.raises(DefinitionError, match="a signal's name must be"):
        Signal("not a name")


def test_history_is_an_argument_of_the_class() -> None:
    """It is checked, not inherited, and survives a class that is made again."""

    class Kept(Machine, history="states"):
        pass

    class Heir(Kept):
        pass

    assert (Kept.__gen_durable__.history, Heir.__gen_durable__.history) == ("states", "transitions")
    assert dataclass(slots=True)(Kept).__gen_durable__.history == "states"
    with pytest.raises(DefinitionError, match="'off', 'transitions' or 'states'"):

        class Odd(Machine, history="all"):  # type: ignore[arg-type]
            pass


def test_history_keep_is_an_argument_of_the_class() -> None:
    """By default 1,000 outcomes are kept; None keeps all."""

    class Short(Machine, history_keep=5):
        pass

    class All(Machine, history_keep=None):
        pass

    class Plain(Machine):
        pass

    assert [m.__gen_durable__.history_keep for m in (Short, All, Plain)] == [5, None, 1000]
    assert dataclass(slots=True)(Short).__gen_durable__.history_keep == 5
    for odd in (0, -1, 2**31, True, "5", 1.5):
        with pytest.raises(DefinitionError, match="history_keep of machine 'Odd' must be a whole number from 1 on"):

            class Odd(Machine, history_keep=odd):  # type: ignore[arg-type]
                pass
