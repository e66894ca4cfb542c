"""Machines that harm their worker: steps that kill it, hang in a thread, block its event loop, or are too large."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from gen_durable import Context, Done, Machine, Next, Outcome, Retry, step
from gen_durable.errors import StepTimeout, TooLarge
from gen_durable.validation import MAX_PAYLOAD
from tools.chaos.effects import Effects
from tools.chaos.machines import Sum, Work, Writing

MAX_CRASHES: Final = 10  # as the worker command: several poisons run at once, and the faults kill too
HANG_SECONDS: Final = 20.0  # longer than the timeout, and shorter than a drain may take


@dataclass(frozen=True)
class Harm:
    """What a step does: nothing, or for how many seconds, or with how many bytes."""

    seconds: float = 0.0
    is_poison: bool = False
    filler: str = ""
    errors: int = 0  # outcomes that led nowhere


class Hostile(Writing, queue="hostile"):
    """A machine whose steps are run again after any error but the expected one."""

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[Sum]:
        return Retry(replace(state, errors=state.errors + 1), delay=timedelta(milliseconds=200))


class Poison(Hostile):
    """Kills its process, each time."""

    @step
    async def kill(self, harm: Harm, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            if harm.is_poison:
                self.effects.write(f"note Poison {ctx.id}")
                os.kill(os.getpid(), signal.SIGKILL)
            return Done(Sum(1 + harm.errors, 1))


class Hanging(Hostile):
    """Does not return within its timeout. Its thread is left behind."""

    @step(timeout=0.5)
    def hang(self, harm: Harm, ctx: Context) -> Outcome[Sum]:
        self.effects.begin(ctx)
        threading.Event().wait(HANG_SECONDS)
        return Done(Sum(0, 0))

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[Sum]:
        if isinstance(error, StepTimeout):
            return Done(Sum(1 + state.errors, 7))
        return await super().on_error(state, ctx, error)


class Blocker(Hostile):
    """Blocks the event loop of its worker for longer than a lease."""

    @step
    async def block(self, harm: Harm, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            if harm.seconds:
                threading.Event().wait(harm.seconds)
            return Done(Sum(1 + harm.errors, 1))


class Large(Hostile):
    """A state near the bound, and then one beyond it, which is refused and loses nothing."""

    @step
    async def grow(self, harm: Harm, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            return Next(self.exceed, replace(harm, filler=harm.filler * 2))

    @step
    async def exceed(self, harm: Harm, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            return Next(self.exceed, replace(harm, filler="x" * MAX_PAYLOAD))

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[Sum]:
        if isinstance(error, TooLarge):
            return Done(Sum(2 + state.errors, len(state.filler)))
        return await super().on_error(state, ctx, error)


class Urgent(Writing):
    """Comes before all others of its queue, by its priority."""

    @step
    async def hurry(self, work: Work, ctx: Context) -> Outcome[Sum]:
        with self.effects.of(ctx):
            return Done(work.outcome())


def hostile_machines(effects: Effects) -> list[Machine]:
    """All of them, for a worker."""
    return [machine(effects) for machine in (Poison, Hanging, Blocker, Large, Urgent)]
