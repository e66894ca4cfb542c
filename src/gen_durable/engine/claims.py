"""Hold: the claims that this worker has in its hands, from the pick to the last answer.

One table that the loop writes and the heartbeat thread reads. A claim is in it exactly as long as its row may be
executing in our name: what is in it gets beats, what is not may be reaped.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass

from gen_durable.registry import Entry
from gen_durable.store.types import Claim


@dataclass(slots=True, eq=False)
class ActiveClaim:
    """A claim in our hands: its step, its task once started, and when its lease was last made or extended."""

    claim: Claim
    entry: Entry
    extended: float
    task: asyncio.Task[None] | None = None
    in_thread: bool = False
    slot: bool = True
    in_step: bool = False  # its task is in user code, where it may be interrupted
    reason: str | None = None  # it is to be cancelled

    def to_be_cancelled(self) -> bool:
        """Asked again after every wait: the heartbeat or a notification may have said so meanwhile."""
        return self.reason is not None


class ClaimTable:
    """All claims of one worker, by id."""

    __slots__ = ("_claims", "_lock")

    def __init__(self) -> None:
        self._claims: dict[int, ActiveClaim] = {}
        self._lock = threading.Lock()

    def add(self, held: ActiveClaim) -> None:
        with self._lock:
            self._claims[held.claim.id] = held

    def remove(self, held: ActiveClaim) -> None:
        # The same row may have been lost and claimed again meanwhile: take out only what we put in.
        with self._lock:
            if self._claims.get(held.claim.id) is held:
                del self._claims[held.claim.id]

    def get(self, instance: int) -> ActiveClaim | None:
        return self._claims.get(instance)

    def all(self) -> list[ActiveClaim]:
        with self._lock:
            return list(self._claims.values())

    def older_than(self, age: float) -> list[ActiveClaim]:
        """Claims whose lease was made or extended longer ago than `age` seconds, in the order of ids."""
        limit = time.monotonic() - age
        with self._lock:
            old = [held for held in self._claims.values() if held.extended <= limit]
        return sorted(old, key=lambda held: held.claim.id)

    def __len__(self) -> int:
        return len(self._claims)
