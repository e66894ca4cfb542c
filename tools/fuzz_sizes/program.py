"""Programs: what one instance of the fuzz does, drawn from the seed, and the end that must come of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from gen_durable.validation import MAX_CHILDREN_BYTES, MAX_CLAIM_PART, MAX_METADATA, MAX_PAYLOAD
from tools.fuzz_sizes.values import KINDS, SALTS, Value

Action: TypeAlias = Literal["next", "await", "children", "spawn", "activities", "checkpoint", "error", "refused"]
ACTIONS: Final[dict[Action, int]] = {  # with their weights
    "next": 6,
    "await": 2,
    "children": 2,
    "spawn": 1,
    "activities": 2,
    "checkpoint": 1,
    "error": 2,
    "refused": 1,
}
REST: Final = 6_000  # bytes of a state beside its filler: the program itself
PRIME: Final = 2**31 - 1
LARGEST_TOTAL: Final = {
    "await": MAX_CLAIM_PART,
    "children": MAX_CHILDREN_BYTES,
    "spawn": MAX_CHILDREN_BYTES,
    "activities": MAX_CLAIM_PART,
}
MOST: Final = {"await": 300, "children": 2500, "spawn": 1000, "activities": 150}


class Op(msgspec.Struct, frozen=True, array_like=True):
    """One action of a program, `count` times with values like `value`."""

    action: Action
    value: Value
    count: int = 1
    in_thread: bool = False  # by a `def` step


class Program(msgspec.Struct, frozen=True, array_like=True):
    """The actions of one instance, and its end: a result, or an error of so many characters."""

    ops: tuple[Op, ...]
    result: Value
    error_size: int = 0  # above 0 it fails with an error of this size

    @property
    def checksum(self) -> int:
        """What the instance must have computed in the end."""
        total = 0
        for op in self.ops:
            total = add(total, op)
        return total

    @property
    def bytes(self) -> int:
        """Roughly how many bytes of payloads it handles."""
        return self.result.size + sum(op.value.size * op.count for op in self.ops)

    @property
    def signals(self) -> list[Value]:
        """The signals that it must be sent, in their order."""
        return [op.value.numbered(n) for op in self.ops if op.action == "await" for n in range(op.count)]

    @property
    def spawned(self) -> int:
        return sum(op.count for op in self.ops if op.action == "spawn")


def add(total: int, op: Op) -> int:
    """The checksum after an action that found everything as it must be."""
    return (total * 31 + op.value.size * op.count + KINDS.index(op.value.kind) + 1) % PRIME


def draw_program(rng: random.Random, largest: float) -> Program:
    """A program; its parts are at most `largest` (0 to 1) of the bounds."""
    ops: list[Op] = []
    has_signals = False
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))):
        (action,) = rng.choices(tuple(ACTIONS), tuple(ACTIONS.values()))
        if action == "await" and has_signals:
            action = "next"  # one inbox has room for the signals of one action only
        has_signals = has_signals or action == "await"
        ops.append(_draw_op(rng, action, largest))
    error_size = draw_size(rng, MAX_PAYLOAD, largest) if rng.random() < 0.15 else 0
    return Program(tuple(ops), draw_value(rng, MAX_PAYLOAD - REST, largest), error_size)


def _draw_op(rng: random.Random, action: Action, largest: float) -> Op:
    in_thread = rng.random() < 0.4
    if action not in LARGEST_TOTAL:
        return Op(action, draw_value(rng, MAX_PAYLOAD - REST, largest), in_thread=in_thread)
    total = draw_size(rng, LARGEST_TOTAL[action], largest)
    count = rng.randint(1, max(min(MOST[action], total // 200), 1))
    if rng.random() < 0.5:  # few and large
        count = max(min(count, total // (MAX_PAYLOAD - REST) + 1), 1)
    # The text of a state that the database gives back, and the program in it, come on top.
    each = min(max(total // count - REST, 100), MAX_PAYLOAD - REST)
    return Op(action, _value(rng, each), count, in_thread)


def draw_value(rng: random.Random, most: int, largest: float) -> Value:
    return _value(rng, draw_size(rng, most, largest))


def _value(rng: random.Random, size: int) -> Value:
    return Value(rng.choice(KINDS), size, rng.randrange(SALTS))


def draw_size(rng: random.Random, most: int, largest: float) -> int:
    """A size: often small, sometimes the largest there may be."""
    if rng.random() < 0.15:
        return int(most * largest)
    return int(100 * (max(most * largest, 200) / 100) ** rng.random())


def draw_metadata(rng: random.Random) -> dict[str, str] | None:
    if rng.random() < 0.5:
        return None
    return {"filler": "x" * (draw_size(rng, MAX_METADATA, 1.0) - len('{"filler":""}'))}


def draw_batch(rng: random.Random, room: int) -> list[Program]:
    """Programs to insert in one call: one large one, a few, or hundreds of small ones; `room` bytes altogether."""
    match rng.choice(("one", "few", "few", "many")):
        case "one":
            count, largest = 1, 1.0
        case "few":
            count, largest = rng.randint(2, 30), rng.choice((0.03, 0.1, 0.3))
        case _:
            count, largest = rng.randint(50, 400), 0.001
    batch: list[Program] = []
    while len(batch) < count:
        program = draw_program(rng, largest)
        if program.bytes <= room:
            room -= program.bytes
            batch.append(program)
        elif batch:
            break
    return batch


def total_bytes(programs: Sequence[Program]) -> int:
    return sum(program.bytes for program in programs)
