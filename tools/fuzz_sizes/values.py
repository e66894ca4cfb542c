"""JSON values of a given size. The same description makes the same value in every process."""

from __future__ import annotations

import random
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from gen_durable.validation import MAX_PAYLOAD

Kind: TypeAlias = Literal[
    "text", "blank", "accents", "quotes", "digits", "nulls", "floats", "exponents", "objects", "nested"
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SALTS: Final = 1000


class Value(msgspec.Struct, frozen=True, array_like=True):
    """The description of a value whose JSON has at most `size` bytes, and nearly as many."""

    kind: Kind
    size: int
    salt: int = 0

    def build(self) -> Any:
        """Cut the value out of a long one of its kind, which is fast: steps run on the event loop that is measured."""
        whole, outside, each = _WHOLE[self.kind]
        count = max((self.size - outside) // each, 0)
        return whole[self.salt : self.salt + count]

    def matches(self, found: Any) -> bool:
        """Whether a value that was stored is this one. A large float comes back as an int with the digits written."""
        if self.kind == "exponents":
            return isinstance(found, list) and [float(item) for item in found] == self.build()
        return bool(found == self.build())

    def numbered(self, number: int) -> Value:
        """One of several values of the same kind and size."""
        return Value(self.kind, self.size, (self.salt + number) % SALTS)


def _wholes() -> dict[Kind, tuple[Any, int, int]]:
    """Of each kind a value that is long enough, the bytes around its items, and the bytes of an item.

    An item counts as what the database writes for it: `1, ` for a digit, and 17 digits for 1e16.
    """
    rng = random.Random("values")
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    nested: Any = "x" * 300  # brackets alone cost the database a microsecond for each byte
    for _ in range(55):
        nested = [nested]

    def count(width: int) -> int:
        return MAX_PAYLOAD // width + SALTS

    return {
        "text": ("".join(rng.choices(letters, k=count(1))), 2, 1),
        "blank": (" " * count(1), 2, 1),
        "accents": ("é" * count(2), 2, 2),
        "quotes": ('"' * count(2), 2, 2),
        "digits": (rng.choices(range(10), k=count(3)), 2, 3),
        "nulls": ([None] * count(6), 2, 6),
        "floats": ([1e16] * count(21), 2, 21),
        "exponents": ([1e300] * count(306), 2, 306),
        "objects": ([{"k": rng.randint(10**5, 10**6 - 1)} for _ in range(count(15))], 2, 15),
        "nested": ([nested] * count(414), 2, 414),
    }


_WHOLE: Final = _wholes()
