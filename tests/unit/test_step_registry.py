"""The registry: the only way from a row's text to code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from gen_durable.context import Context
from gen_durable.errors import DefinitionError
from gen_durable.jobs import job
from gen_durable.machines import Machine, step
from gen_durable.outcomes import Done, Outcome
from gen_durable.step_registry import Registry


@dataclass(frozen=True)
class Order:
    id: int


class Shop(Machine, version=2):
    def __init__(self, price: int) -> None:
        self.price = price

    @step(aliases=["begin"])
    async def start(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(self.price)


class OldShop(Machine, name="Shop", version=1):
    @step
    async def begin(self, order: Order, ctx: Context) -> Outcome[int]:
        return Done(0)


class Empty(Machine):
    pass


class Mistaken(Machine):
    @step
    async def start(self, order: Missing, ctx: Context) -> Outcome[int]:  # type: ignore[name-defined]  # noqa: F821  # the case
        return Done(0)


class Unstorable(Machine):
    @step
    async def start(self, order: Registry, ctx: Context) -> Outcome[int]:
        return Done(0)


@job
async def send(text: str) -> int:
    return len(text)


async def test_steps_are_found_bound_to_their_machine() -> None:
    """Names and old names lead to the step; the call has the services of the instance that was given."""
    shop = Shop(price=42)
    registry = Registry([shop], [send])
    entry = registry.find_step("Shop", 2, "start")
    assert entry is not None
    assert entry.owner is shop
    assert entry.spec is Shop.__gen_durable__.steps["start"]
    outcome = await entry.call(Order(1), None)
    assert outcome.result == 42
    old = registry.find_step("Shop", 2, "begin")
    assert old is not None
    assert old.spec is entry.spec
    mail = registry.find_step("send", 1, "run")
    assert mail is not None
    assert mail.owner is send
    assert await mail.call("abc") == 3


@pytest.mark.parametrize(
    "name",
    [
        ("Shop", 1, "start"),
        ("Shop", 2, "on_error"),
        ("Shop", 2, "__init__"),
        ("Shop", 2, ""),
        ("shop", 2, "start"),
        ("OldShop", 1, "begin"),
        ("os", 1, "system"),
        ("send", 1, "send"),
    ],
)
def test_what_was_not_given_is_not_found(name: tuple[str, int, str]) -> None:
    """Another version, a plain method, a class that exists but was not given: nothing is found, nothing is imported."""
    assert Registry([Shop(1)], [send]).find_step(*name) is None


def test_known_lists_every_name() -> None:
    """What the pick function compares rows with, old names included."""
    known = Registry([Shop(1), OldShop()], [send]).known_step_keys
    assert sorted(known) == ["Shop/1/begin", "Shop/2/begin", "Shop/2/start", "send/1/run"]
    assert Registry().known_step_keys == []


def test_two_versions_of_a_machine_live_side_by_side() -> None:
    """A deploy runs old and new instances in one worker."""
    registry = Registry([Shop(1), OldShop()])
    new, old = registry.find_step("Shop", 2, "begin"), registry.find_step("Shop", 1, "begin")
    assert new is not None
    assert old is not None
    assert new.spec is not old.spec
    assert [spec.version for spec in registry.specs] == [2, 1]


class Impostor(Machine, name="send"):
    @step
    async def run(self, text: str, ctx: Context) -> Outcome[int]:
        return Done(0)


@pytest.mark.parametrize(
    ("machines", "jobs", "words"),
    [
        ([Shop], [], r"machines takes instances: pass Shop\(\), not the class"),
        ([5], [], "machines takes Machine instances, got int"),
        ([send], [], "machines takes Machine instances, got Job"),
        ([Machine()], [], "subclass Machine"),
        ([Empty()], [], "machine 'Empty' has no steps: mark at least one method with @step"),
        ([Shop(1), Shop(2)], [], "two machines or jobs are called 'Shop' version 2"),
        ([], [send, send], "two machines or jobs are called 'send' version 1"),
        ([Impostor()], [send], "two machines or jobs are called 'send' version 1"),
        ([], [len], "jobs takes functions decorated with @job, got builtin_function_or_method"),
        ([], [Shop(1)], "jobs takes functions decorated with @job, got Shop"),
        ([Mistaken()], [], r"Mistaken\.start has an annotation that cannot be resolved"),
        ([Unstorable()], [], r"the state of Unstorable\.start: the type Registry cannot be stored"),
    ],
)
def test_what_cannot_be_run_is_refused_at_the_start(machines: Any, jobs: Any, words: str) -> None:
    """A mistake in the code stops the worker from starting; it does not wait for a row."""
    with pytest.raises(DefinitionError, match=words):
        Registry(cast(Any, machines), cast(Any, jobs))
