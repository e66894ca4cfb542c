"""Random values for the parameters of SQL functions, by type: edges, wrong shapes, and things that almost fit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

TEXTS = (
    *("", " ", "default", "m", "s", "go", "key-1", "key-2", "queue", "cancel_children", "raise", "existing", "skip"),
    *("live", "forever", "{runnable}", "{}", "{", "{null}", "NaN", "null", "true", "instances", "state", "concurrency"),
    *("rate", "done", "await", "children", "next", "x/y", "partition/x", "slot/", "a" * 201, "ä" * 300, "x" * 20_000),
    *(
        "\n",
        "\x1b[31m",
        "\x01\x02",
        "\u202eabc",
        "\U0001f600",
        "'; drop table x; --",
        "%s %I",
        "$1",
        "\\",
        '"',
        "@schema",
    ),
)
INTEGERS = (0, 1, 2, -1, 10, 1000, 10_001, 32_767, -32_768, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63))
FLOATS = ("0", "1", "-1", "0.5", "3600", "1e10", "1e308", "-1e308", "1e-320", "NaN", "Infinity", "-Infinity")
MOMENTS = (
    *("now", "infinity", "-infinity", "4713-01-01 BC", "294276-12-31 23:59", "0001-01-01", "9998-12-31", "20000-01-01"),
    *("1970-01-01", "2100-02-28 23:59:59.999999+14"),
)
INTERVALS = ("0", "1 second", "-1 hour", "178000000 years", "-178000000 years", "1 mon", "99999999 days")
# Fields of starts, extras, filters, limits and signals: objects of these get past the first look.
FIELDS = (
    *("fsm", "step", "version", "state", "queue", "priority", "partition_key", "delay", "schedule_at", "unique_scope"),
    *("limits", "group_key", "metadata", "keep", "signals", "id", "unique_key", "name", "payload", "dedup_key"),
    *("status", "machine", "parent", "due", "blocked", "error", "inserted_after", "updated_before", "finished_after"),
    *("awaits", "seen", "children", "spawn", "consumed", "children_needed", "on_failure", "kind", "default"),
)
# What most functions accept.
GENTLE: dict[str, tuple[object, ...]] = {
    "text": ("m", "s", "default", "go", "{runnable}"),
    "integer": (1, 2, 10),
    "smallint": (0, 1),
    "double precision": ("0", "1", "3600"),
    "boolean": ("true", "false"),
    "jsonb": ("{}", "[]", "1", '{"fsm": "m", "step": "s"}', '{"fsm": "m", "step": "s", "delay": 9}', '["x"]'),
    "bytea": ("\\x6b31", "\\x6b65792d31"),
    "timestamp with time zone": ("now", "2100-01-01"),
    "interval": ("0", "1 hour"),
}


class Values:
    """Values drawn from one source of chance."""

    def __init__(self, chance: random.Random, ids: Sequence[int]) -> None:
        self._chance = chance
        self._ids = ids
        self._is_gentle = False
        self._by_type: dict[str, Callable[[], Any]] = {
            "text": self.text,
            "integer": lambda: chance.choice([n for n in INTEGERS if abs(n) < 2**31]),
            "smallint": lambda: chance.choice([n for n in INTEGERS if abs(n) < 2**15]),
            "bigint": self.integer,
            "double precision": lambda: chance.choice(FLOATS),
            "boolean": lambda: chance.choice(("true", "false")),
            "jsonb": lambda: self.document(4),
            "bytea": lambda: "\\x" + chance.choice((b"key-1", b"key-2", b"", b"\0\xff", b"k" * 513, b"mine")).hex(),
            "timestamp with time zone": lambda: chance.choice(MOMENTS),
            "interval": lambda: chance.choice(INTERVALS),
        }

    def row(self, types: Sequence[str]) -> list[str | None]:
        """The values of one call: all of them wild, or most of them good, so that it gets past the first checks."""
        self._is_gentle = self._chance.random() < 0.5
        return [self.of(one) for one in types]

    def of(self, type_name: str) -> str | None:
        """A value as text, null one time in eight."""
        if self._chance.random() < 0.125:
            return None
        if not type_name.endswith("[]"):
            return str(self._one(type_name))
        elements = [self._one(type_name[:-2]) for _ in range(self._chance.choice((0, 1, 1, 1, 2, 3)))]
        shape = self._chance.random()
        if shape < 0.02 and elements:
            small = elements[0] if len(str(elements[0])) < 100 else "1"  # a message has at most 1 GB
            elements = [small] * self._chance.choice((10_001, 100_001))
        texts = [self._element(None if self._chance.random() < 0.15 else element) for element in elements]
        text = "{" + ",".join(texts) + "}"
        return f"{{{text},{text}}}" if 0.02 < shape < 0.06 and elements else text  # two dimensions

    def text(self) -> str:
        return self._chance.choice(TEXTS)

    def integer(self) -> int:
        return self._chance.choice(self._ids if self._chance.random() < 0.6 else INTEGERS)

    def document(self, depth: int) -> str:
        return json.dumps(self._value(depth)).replace("\\u0000", "")

    def _value(self, depth: int) -> object:
        kind = self._chance.randrange(10 if depth else 6)
        match kind:
            case 0:
                return None
            case 1:
                return self._chance.random() < 0.5
            case 2:
                return self._chance.choice((*INTEGERS, 1e308, 0.1, 10**40))
            case 3:
                return self._chance.choice(MOMENTS)
            case 4 | 5:
                return self.text()
            case 6 | 7:
                return [self._value(depth - 1) for _ in range(self._chance.randrange(4))]
            case _:
                start = {"fsm": "m", "step": "s"} if self._chance.random() < 0.7 else {}
                fields = self._chance.sample(FIELDS, self._chance.randrange(5))
                return start | {field: self._value(depth - 1) for field in fields}

    def _one(self, type_name: str) -> Any:
        if self._is_gentle and self._chance.random() < 0.9 and type_name in GENTLE:
            return self._chance.choice(GENTLE[type_name])
        return self._by_type.get(type_name, self.text)()

    @staticmethod
    def _element(value: Any) -> str:
        if value is None:
            return "NULL"
        return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
