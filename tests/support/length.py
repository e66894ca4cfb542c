"""How long random tests are: short by default, long with GEN_DURABLE_TEST_LONG (`make test-long`)."""

from __future__ import annotations

import os
from typing import Final, TypeVar

T = TypeVar("T")

LONG: Final = "GEN_DURABLE_TEST_LONG" in os.environ


def short_or_long(short: T, long: T) -> T:
    return long if LONG else short
