"""Durations as users write them: `timedelta`, a number of seconds, or text such as `30s` and `2h`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, TypeAlias

from gen_durable.errors import InputError

Duration: TypeAlias = timedelta | float
"""What every public call takes for a duration: a `timedelta`, or seconds as a number."""

_TEXT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*")
_UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str) -> timedelta:
    """Read `250ms`, `30s`, `15m`, `2h`, `7d`, or a plain number of seconds. Raises `InputError`."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is not a duration. Write a number and a unit: 250ms, 30s, 15m, 2h or 7d.")
    try:
        return timedelta(seconds=float(found[1]) * _UNIT_SECONDS[found[2] or "s"])
    except OverflowError:
        raise InputError(f"The duration {text!r} is too long.") from None
