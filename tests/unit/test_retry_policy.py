"""`RetryPolicy`: its checks, its places, and the time that the default takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from gen_durable import Abort, Context, Done, Fail, Machine, Next, Outcome, RetryPolicy, backoff, job, step
from gen_durable.errors import DefinitionError
from gen_durable.machines import ON_ERROR_TIMEOUT
from gen_durable.retry_policy import DEFAULT_POLICY
from gen_durable.step_registry import Registry


@dataclass(frozen=True)
class Order:
    id: int


@dataclass(frozen=True)
class Paid:
    id: int


def total_seconds(policy: RetryPolicy, jitter: float) -> float:
    assert policy.attempts is not None
    assert policy.backoff is backoff
    return sum(backoff(n, jitter=0).total_seconds() * (1 + jitter) for n in range(policy.attempts - 1))


def test_the_default_policy_takes_a_few_hours() -> None:
    """20 attempts: 2 h 32 min without jitter, 2 h 48 min at most. Before it was 8.1 to 9 hours."""
    assert RetryPolicy() == DEFAULT_POLICY
    assert (DEFAULT_POLICY.attempts, DEFAULT_POLICY.on, DEFAULT_POLICY.then) == (20, (Exception,), None)
    assert total_seconds(DEFAULT_POLICY, 0) == 9123
    assert total_seconds(DEFAULT_POLICY, 0) >= 2 * 3600 + 32 * 60
    assert total_seconds(DEFAULT_POLICY, 0.1) <= 2 * 3600 + 48 * 60
    for n in range(19):
        assert backoff(n, jitter=0) <= backoff(n) <= backoff(n, jitter=0) * 1.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attempts": 0}, r"RetryPolicy\(attempts=\) must be 1 or more"),
        ({"attempts": True}, "must be 1 or more"),
        ({"attempts": 1.5}, "must be 1 or more"),
        ({"attempts": "3"}, "must be 1 or more, or None for no end, got '3'"),
        ({"backoff": 5}, r"RetryPolicy\(backoff=\) must be a function of the number of errors, got int"),
        ({"on": ()}, r"RetryPolicy\(on=\) must be an exception class or a tuple of them"),
        ({"on": [ValueError]}, "must be an exception class or a tuple of them"),
        ({"on": ValueError("x")}, "must be an exception class or a tuple of them"),
        ({"on": (ValueError, int)}, "must be an exception class or a tuple of them"),
        ({"on": KeyboardInterrupt}, "do not derive from Exception"),
        ({"then": 5}, r"RetryPolicy\(then=\) must be a step or its name, got int"),
        ({"then": "refund", "attempts": None}, "never gives up"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        RetryPolicy(**options)


def test_one_class_may_stand_for_a_tuple() -> None:
    assert RetryPolicy(on=ConnectionError) == RetryPolicy(on=(ConnectionError,))


def test_a_policy_covers_what_it_names() -> None:
    """Subclasses too, and `Abort` never."""
    policy = RetryPolicy(on=OSError)
    assert policy.covers(ConnectionResetError())
    assert not policy.covers(ValueError())
    assert not RetryPolicy(on=(Exception, Abort)).covers(Abort("no"))


def test_a_policy_is_used_up_with_its_last_attempt() -> None:
    assert [RetryPolicy(attempts=2).is_used_up(n) for n in (1, 2, 3)] == [False, True, True]
    assert not RetryPolicy(attempts=None).is_used_up(10**9)


class Plain(Machine):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)


class Handled(Machine):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)

    @step(retry=RetryPolicy(attempts=2))
    async def own(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)

    async def on_error(self, state: object, ctx: Context, error: Exception) -> Outcome[int]:
        return Fail(error)


class Base(Machine, retry=RetryPolicy(attempts=7), on_error_timeout=5):
    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)

    @step(retry=RetryPolicy(attempts=2))
    async def own(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)


class Derived(Base):
    pass


class Replaced(Base, retry=RetryPolicy(attempts=9), on_error_timeout=6):
    pass


@dataclass(slots=True)
class Rebuilt(Machine, retry=RetryPolicy(attempts=4), on_error_timeout=7):
    """`@dataclass(slots=True)` makes the class a second time, without its arguments."""

    service: str = ""

    @step
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)


@job(retry=RetryPolicy(attempts=3))
def own_job() -> None: ...


@job
def plain_job() -> None: ...


def attempts_of(owner: Any, step: str = "start") -> Any:
    registry = Registry([owner]) if isinstance(owner, Machine) else Registry([], [owner])
    policy = registry.get_known_step(registry.specs[0].name, 1, step).retry
    return None if policy is None else policy.attempts


def test_which_policy_a_step_has() -> None:
    """Its own, else that of its machine, else the default one; with an `on_error` only a policy that is named."""
    assert attempts_of(Plain()) == 20
    assert attempts_of(Handled()) is None
    assert attempts_of(Handled(), "own") == 2
    assert attempts_of(Base()) == 7
    assert attempts_of(Base(), "own") == 2
    assert attempts_of(plain_job, "run") == 20
    assert attempts_of(own_job, "run") == 3


def test_a_machine_passes_its_policy_on_to_its_subclasses() -> None:
    """As it does with `on_error`."""
    assert [attempts_of(Derived(), name) for name in ("start", "own")] == [7, 2]
    assert [attempts_of(Replaced(), name) for name in ("start", "own")] == [9, 2]
    assert attempts_of(Rebuilt()) == 4
    timeouts = [cls.__gen_durable__.on_error_timeout for cls in (Plain, Base, Derived, Replaced, Rebuilt)]
    assert timeouts == [ON_ERROR_TIMEOUT, 5, 5, 6, 7]


def test_the_places_are_checked() -> None:
    wrong = cast(Any, 3)
    with pytest.raises(DefinitionError, match="the retry of step 'start' must be a RetryPolicy, got int"):
        step(retry=wrong)(Plain.start)
    with pytest.raises(DefinitionError, match="the retry of machine 'Wrong' must be a RetryPolicy, got int"):

        class Wrong(Machine, retry=wrong):
            pass

    with pytest.raises(DefinitionError, match="the on_error_timeout of machine 'Hasty' must be"):

        class Hasty(Machine, on_error_timeout=0):
            pass


def test_then_is_a_step_of_the_same_machine() -> None:
    """By function or by name, also in a subclass, which has copies of the functions."""

    class Shop(Machine):
        @step(name="refund.v2", aliases=["refund"])
        async def refund(self, order: Order, ctx: Context) -> Outcome[int]:
            return Done(0)

        @step(retry=RetryPolicy(then=refund))
        async def start(self, order: Order, ctx: Context) -> Outcome[int]:
            return Next(self.other, order)

        @step(retry=RetryPolicy(then="refund.v2"))
        async def other(self, order: Order, ctx: Context) -> Outcome[int]:
            return Done(1)

        @step(retry=RetryPolicy(then="refund"))
        async def by_alias(self, order: Order, ctx: Context) -> Outcome[int]:
            return Done(1)

    class Child(Shop):
        pass

    for cls in (Shop, Child):
        steps = cls.__gen_durable__.steps
        assert [steps[name].step_after_retries for name in ("start", "other", "by_alias")] == [steps["refund.v2"]] * 3
        assert steps["refund.v2"].step_after_retries is None


def test_then_that_is_no_step() -> None:
    with pytest.raises(DefinitionError, match=r"of step Unknown\.start leads to 'nowhere'.*has no such step"):

        class Unknown(Machine):
            @step(retry=RetryPolicy(then="nowhere"))
            async def start(self, order: Order, ctx: Context) -> Outcome[int]:
                return Done(1)

    with pytest.raises(DefinitionError, match="must be a step of the same machine"):

        class Unmarked(Machine):
            async def helper(self, order: Order, ctx: Context) -> Outcome[int]:
                return Done(1)

            @step(retry=RetryPolicy(then=helper))
            async def start(self, order: Order, ctx: Context) -> Outcome[int]:
                return Done(1)

    with pytest.raises(DefinitionError, match="must be a step of the same machine"):

        class Foreign(Machine):
            @step(retry=RetryPolicy(then=Plain.start))
            async def start(self, order: Order, ctx: Context) -> Outcome[int]:
                return Done(1)

    with pytest.raises(DefinitionError, match="leads to the step itself"):

        class Circle(Machine):
            @step(retry=RetryPolicy(then="start"))
            async def start(self, order: Order, ctx: Context) -> Outcome[int]:
                return Done(1)


def test_then_takes_the_same_state() -> None:
    """A wider union and no annotation will do as well."""
    with pytest.raises(DefinitionError, match=r"leads to Other\.refund, which takes Paid and not Order"):

        class Other(Machine):
            @step
            async def refund(self, paid: Paid, ctx: Context) -> Outcome[int]:
                return Done(0)

            @step(retry=RetryPolicy(then=refund))
            async def start(self, order: Order, ctx: Context) -> Outcome[int]:
                return Done(1)

    class Wide(Machine, retry=RetryPolicy(then="anything")):
        @step
        async def perhaps(self, order: Order | None, ctx: Context) -> Outcome[int]:
            return Done(0)

        @step
        async def anything(self, state: Any, ctx: Context) -> Outcome[int]:
            return Done(0)

        @step(retry=RetryPolicy(then=perhaps))
        async def start(self, order: Order, ctx: Context) -> Outcome[int]:
            return Done(1)

    assert Wide.__gen_durable__.steps["anything"].step_after_retries is None
    assert Wide.__gen_durable__.steps["perhaps"].step_after_retries is Wide.__gen_durable__.steps["anything"]


class Early(Machine):
    """Its types are not known yet when the class is created."""

    @step
    async def refund(self, later: Later, ctx: Context) -> Outcome[int]:
        return Done(0)

    @step(retry=RetryPolicy(then=refund))
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(1)


@dataclass(frozen=True)
class Later:
    id: int


def test_types_that_are_defined_later_are_checked_by_the_worker() -> None:
    with pytest.raises(DefinitionError, match=r"leads to Early\.refund, which takes Later and not Order"):
        Registry([Early()])
