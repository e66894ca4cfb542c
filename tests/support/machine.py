"""A machine for tests of the SQL: its rows are what counts, its steps never run."""

from __future__ import annotations

import json
from typing import Any

from tests.support.rows import LIVE

from gen_durable.context import Context
from gen_durable.machines import Machine, step
from gen_durable.outcomes import Done, Outcome
from gen_durable.store.types import Commit, OutgoingSignal

KNOWN = ["m/1/s", "m/1/t"]


class M(Machine, name="m"):
    """Any states, two steps."""

    @step
    async def s(self, state: Any, ctx: Context) -> Outcome[Any]:
        return Done(state)

    @step
    async def t(self, state: Any, ctx: Context) -> Outcome[Any]:
        return Done(state)


def child(key: str | None = None, **more: object) -> dict[str, object]:
    """A child as it is written in an outcome's extra."""
    one: dict[str, object] = {"fsm": "m", "version": 1, "step": "s", "state": {}, "queue": "default", "priority": 0}
    if key is not None:
        one |= {"unique_key": key.encode().hex(), "unique_scope": LIVE}
    return one | {"delay": 0} | more


def fan_out(id: int, *children: dict[str, object], claim: int = 1, seq: int = 0) -> Commit:  # noqa: A002
    """The outcome that starts children and waits for them."""
    return Commit(id, claim, seq, "children", step="t", extra=json.dumps({"children": children}))


def park(id: int, *names: str, seen: tuple[int, ...] = (), timeout: float | None = None, claim: int = 1) -> Commit:  # noqa: A002
    """The outcome that waits for signals."""
    return Commit(id, claim, 0, "await", step="t", delay=timeout, extra=json.dumps({"awaits": names, "seen": seen}))


def send(target: int | None, name: str = "go", *, key: bytes | None = None, dedup: str | None = None) -> OutgoingSignal:
    """A signal to be delivered."""
    return OutgoingSignal(target, key, name, "1", dedup)
