"""explore(): random histories find what a written test does not think of, and tell it in a few lines."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st

from gen_durable import Await, Context, Done, Fail, Machine, Next, Outcome, Signal, step
from gen_durable.errors import ConfigError, InputError
from gen_durable.testing import HarnessFactory, Snapshot, explore, sends, starts

paid = Signal("paid", int)
abandoned = Signal("abandoned")


class Till:
    """A service that is called: it knows a key that it was given before."""

    def __init__(self) -> None:
        self.charges: list[int] = []
        self.refunds: list[int] = []
        self._keys: set[str] = set()

    async def charge(self, amount: int, key: str | None = None) -> None:
        if key is None or key not in self._keys:
            self.charges.append(amount)
        self._keys.add(key or "")


class Careless(Machine):
    """Charges without a key: a step that runs twice charges twice."""

    def __init__(self) -> None:
        self.till = Till()

    @step
    async def begin(self, amount: int, ctx: Context) -> Outcome[int]:
        return Await(paid, then=self.collect, state=amount, timeout=timedelta(hours=1))

    @step
    async def collect(self, amount: int, ctx: Context) -> Outcome[int]:
        if ctx.take(paid) is None:
            return Fail("nobody has paid")
        await self.till.charge(amount)
        return Done(amount)


class Careful(Careless, name="careful"):
    """The same, mended."""

    @step
    async def collect(self, amount: int, ctx: Context) -> Outcome[int]:
        if ctx.take(paid) is None:
            return Fail("nobody has paid")
        await self.till.charge(amount, ctx.idempotency_key)
        return Done(amount)


def charged_once(machine: Careless, found: Snapshot) -> None:
    assert len(machine.till.charges) <= 1, f"charged {machine.till.charges}"


def run(harnesses: HarnessFactory, machine: type[Careless], **options: Any) -> None:
    explore(
        harnesses,
        machine,
        starts(machine.begin, st.integers(1, 100)),
        signals=[sends(paid, st.integers(1, 100))],
        invariants=[charged_once],
        seed=1,
        **options,
    )


def test_it_finds_a_step_that_must_not_run_twice(durable_harness: HarnessFactory) -> None:
    """The shortest history has one crash, in the right step, and no number but the least."""
    with pytest.raises(AssertionError) as caught:
        run(durable_harness, Careless)
    text = str(caught.value)
    assert text.startswith("charged_once does not hold: charged [1, 1]")
    lines = re.findall(r"^  \d\. (.*)", text, re.MULTILINE)
    assert len(lines) == 5
    assert lines[0] == "an instance starts with 1"
    assert sorted(lines[1:3]) == ["instance 1 runs Careless.begin: Await", "signal 'paid' arrives with 1"]
    assert lines[3:] == [
        "instance 1 runs Careless.collect: its worker dies before the commit",
        "instance 1 runs Careless.collect (attempt 1): Done",
    ]


def test_the_mended_machine_passes(durable_harness: HarnessFactory) -> None:
    run(durable_harness, Careful, examples=30)


def test_without_crashes_it_is_not_found(durable_harness: HarnessFactory) -> None:
    """So it is the crash that finds it."""
    run(durable_harness, Careless, crashes=False, examples=15)


class Race(Machine):
    """A payment that comes with its abandonment is kept, and nothing is sent for it."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    @step
    async def begin(self, amount: int, ctx: Context) -> Outcome[str]:
        return Await([paid, abandoned], then=self.decide, state=amount, timeout=timedelta(days=1))

    @step
    async def decide(self, amount: int, ctx: Context) -> Outcome[str]:
        self.kept = ctx.take_all(paid)
        if any(received.name == abandoned.name for received in ctx.awaited):
            return Done("abandoned")
        return Done("shipped" if self.kept else "too late")


def nobody_pays_for_nothing(machine: Race, found: Snapshot) -> None:
    assert found.result in (None, "shipped") or not machine.kept, f"{found.result}, and {machine.kept} was kept"


def test_it_finds_two_signals_at_once(durable_harness: HarnessFactory) -> None:
    with pytest.raises(AssertionError, match="nobody_pays_for_nothing does not hold: abandoned, and") as caught:
        explore(
            durable_harness,
            Race,
            starts(Race.begin, st.integers(0, 3)),
            signals=[sends(paid, st.integers(1, 3)), sends(abandoned)],
            invariants=[nobody_pays_for_nothing],
            seed=1,
        )
    text = str(caught.value)
    assert len(re.findall(r"signal '", text)) == 2
    assert "dies" not in text
    assert "pass\n" not in text


def test_time_and_cancellation_are_moves(durable_harness: HarnessFactory) -> None:
    """Every end that the machine can come to is come to."""
    ends: set[str] = set()

    def notes(machine: Careful, found: Snapshot) -> None:
        if found.status.terminal:
            ends.add(found.status.value)

    explore(
        durable_harness,
        Careful,
        starts(Careful.begin, st.just(7)),
        signals=[sends(paid, st.just(7))],
        invariants=[notes],
        cancels=True,
        seed=1,
    )
    assert ends == {"done", "failed", "cancelled"}


class Breaks(Machine):
    """Has a mistake in the branch that nobody tries."""

    @step
    async def begin(self, n: int, ctx: Context) -> Outcome[int]:
        return Await(paid, then=self.collect, state=n, timeout=timedelta(hours=1))

    @step
    async def collect(self, n: int, ctx: Context) -> Outcome[int]:
        amount = ctx.take(paid)
        return Done(n // amount)  # type: ignore[operator]


def test_a_step_that_raises_is_found_unless_it_may(durable_harness: HarnessFactory) -> None:
    """Nobody pays for an hour, or pays nothing."""

    def go(*raises: type[Exception]) -> None:
        start = starts(Breaks.begin, st.just(4))
        explore(
            durable_harness,
            Breaks,
            start,
            signals=[sends(paid, st.integers(0, 9))],
            invariants=[lambda machine, found: None],
            raises=raises,
            seed=1,
            examples=40,
        )

    with pytest.raises(
        AssertionError, match=r"Breaks.collect raises (TypeError|ZeroDivisionError)\(.*\n  1\. an instance"
    ):
        go()
    go(TypeError, ZeroDivisionError)


class Spins(Machine):
    @step
    async def spin(self, n: int, ctx: Context) -> Outcome[int]:
        return Next(self.spin, n)


def test_a_machine_that_never_rests_is_told(durable_harness: HarnessFactory) -> None:
    with pytest.raises(AssertionError, match="more than 100 steps ran"):
        explore(durable_harness, Spins, starts(Spins.spin, st.just(1)), invariants=[lambda m, f: None], examples=1)


def test_it_needs_something_to_check_and_no_loop(durable_harness: HarnessFactory) -> None:
    import asyncio

    with pytest.raises(InputError, match=r"explore\(\) needs invariants"):
        explore(durable_harness, Careful, starts(Careful.begin, st.just(1)), invariants=[])

    async def inside() -> None:
        run(durable_harness, Careful)

    with pytest.raises(ConfigError, match="Call it from a plain `def` test"):
        asyncio.run(inside())


def test_without_hypothesis_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from gen_durable.testing import HarnessFactory, explore, starts\n"
        "explore(HarnessFactory('', 'x'), None, starts(None, None), invariants=[print])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "explore() needs hypothesis. Run: pip install 'gen-durable[testing]'" in done.stderr
