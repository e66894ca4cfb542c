"""The pauses of the code under test: recorded, and made shorter."""

from __future__ import annotations

import asyncio
import math

import pytest


def record_pauses(monkeypatch: pytest.MonkeyPatch, longest: float = math.inf) -> list[float]:
    """Record what `asyncio.sleep` is called with, except 0. No pause takes more than `longest` seconds."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def record(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
        await sleep(min(seconds, longest))

    monkeypatch.setattr(asyncio, "sleep", record)
    return pauses
