"""One round of calls on a table, in an order in which each gives back what another took.

    pick, hold, done and insert    rows of `default` go out at the head and come in at the tail
    pick keyed, next               the same rows of `keyed` go round
    signal, pick, await            rows of `inbox` are woken and parked again, their signals consumed: first some out
                                   of 300 that are active at every size, then (`signal cold`) some out of all
    pick with no lease, reap       rows of `expiring` are lost and taken back
    gc                             1,000 ended rows go; 900 new ones are put in beside the 100 of `done`

So the table is the same after every round, whatever its size. What is not a call of the engine is done by the side
connection and not measured.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gen_durable.context import Context
from gen_durable.machines import Machine, step
from gen_durable.outcomes import Done, Outcome
from gen_durable.starts import Start
from gen_durable.store.statements import Statement
from gen_durable.store.types import Commit, OutgoingSignal
from tools.bench.scale.dataset import ENDED, Table

KNOWN: Final = ["m/1/s"]
LEASE: Final = 3600.0
SINGLE: Final = 20
STATE: Final = '{"n": 2, "name": "a state of a common size", "items": [1, 2, 3]}'

# Each call and its batch: what its cost is divided by.
BATCH: Final = {
    "pick": 100,
    "pick keyed": 100,
    "pick idle": 1,
    "flush continue": 100,
    "flush next": 100,
    "flush done": 100,
    "flush await": 100,
    "signal": 1,
    "signal cold": 1,
    "heartbeat": 500,
    "reap": 100,
    "gc": 1000,
    "insert": 100,
}

Run = Callable[[str, Statement[Any]], Awaitable[None]]


class M(Machine, name="m"):
    """Its rows are what counts; its step never runs."""

    @step
    async def s(self, state: Any, ctx: Context) -> Outcome[Any]:
        return Done(state)


async def round_of(table: Table, run: Run, executing: int, dice: random.Random) -> None:
    """Every call once. `run` carries out a call under a name and measures it."""
    calls = table.calls

    await run("pick", calls.pick("w", {"default": 100}, KNOWN, LEASE))
    held = await _claims(table, "w", 100)
    await run("flush continue", calls.flush([Commit(i, c, s, "continue", step="s", value=STATE) for i, c, s in held]))
    await run("flush done", calls.flush([Commit(i, c, s + 1, "done", value='{"ok": true}') for i, c, s in held]))
    await run("insert", calls.insert([Start(M.s, {"n": 1}) for _ in range(100)], "raise"))

    await run("pick keyed", calls.pick("w", {"keyed": 100}, KNOWN, LEASE))
    held = await _claims(table, "w", 100)
    await run("flush next", calls.flush([Commit(i, c, s, "next", step="s", value=STATE) for i, c, s in held]))
    await run("pick idle", calls.pick("w", {"idle": 100}, KNOWN, LEASE))

    for name, parked in (("signal", table.active), ("signal cold", table.parked)):
        targets = dice.sample(parked, 100)
        deliveries = [OutgoingSignal(i, None, "go", '{"paid": 1}', None) for i in targets]
        for one in deliveries[:SINGLE]:
            await run(name, calls.signal([one]))  # one by one, as `Durable.signal` sends them
        await _quietly(table, calls.signal(deliveries[SINGLE:]))
        await _quietly(table, calls.pick("w", {"inbox": 100}, KNOWN, LEASE))
        parking = calls.flush(await _parks(table, targets))
        if name == "signal":
            await run("flush await", parking)
        else:
            await _quietly(table, parking)

    await _quietly(table, calls.pick("lost", {"expiring": 100}, KNOWN, -1))
    await run("reap", calls.reap(100, None))

    if executing >= BATCH["heartbeat"]:
        beating = await _claims(table, "held", executing)
        chosen = sorted(dice.sample(beating, BATCH["heartbeat"]))
        await run("heartbeat", calls.heartbeat([(i, c) for i, c, _ in chosen], LEASE))

    await run("gc", calls.gc(0, 0, 0, 1000))
    await table.fetch(ENDED, 900)


async def hold(table: Table, executing: int) -> None:
    """Have this many rows executing, beside the measured ones."""
    held = await _claims(table, "held")
    if len(held) > executing:
        await _quietly(table, table.calls.release_claims([(i, c, None, None) for i, c, _ in held]))
        held = []
    if len(held) < executing:
        await _quietly(table, table.calls.pick("held", {"held": executing - len(held)}, KNOWN, LEASE))
    await _claims(table, "held", executing)


async def _claims(table: Table, worker: str, expected: int | None = None) -> list[tuple[int, int, int]]:
    found = await table.fetch(
        "select id, claims, seq from @schema.instances where status = 'executing' and locked_by = $1 order by id",
        worker,
    )
    if expected is not None and len(found) != expected:
        raise RuntimeError(f"{worker} holds {len(found)} rows of a table of {table.size}, not {expected}")
    return [(row[0], row[1], row[2]) for row in found]


async def _parks(table: Table, targets: list[int]) -> list[Commit]:
    """The outcomes that park these rows again and consume what had woken them."""
    came = await table.fetch(
        "select target_id, id from @schema.signals where target_id = any ($1) and name = 'go'", targets
    )
    extras = {target: json.dumps({"awaits": ["go"], "seen": [], "consumed": [signal]}) for target, signal in came}
    return [
        Commit(i, claim, seq, "await", step="s", delay=86400.0 if i % 2 else None, extra=extras[i])
        for i, claim, seq in await _claims(table, "w", 100)
    ]


async def _quietly(table: Table, call: Statement[Any]) -> None:
    await table.main.fetch(call.text, *call.args)
