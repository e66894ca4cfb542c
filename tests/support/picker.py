"""The objects around a picker: they keep its claims and wake-ups for the test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gen_durable.engine.crashed_row_slots import CrashedRowSlots
from gen_durable.store.types import Claim


class Claimed:
    """Stands for the claim table, the committer and the notifier: keeps the claims, and has outcomes pending."""

    def __init__(self) -> None:
        self.claims: asyncio.Queue[Claim] = asyncio.Queue()
        self.crashed = CrashedRowSlots(None)
        self.unanswered_in_batches = 0
        self.woken: asyncio.Queue[str] = asyncio.Queue()
        self.full: list[str] = []
        self.missed: list[str] = []
        self.postponed: list[tuple[int, str]] = []
        self.leased_at = 0.0

    def add_and_start(self, claims: list[Claim], leased_at: float) -> None:
        self.leased_at = leased_at
        for claim in claims:
            self.claims.put_nowait(claim)

    def wake_queues(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self.woken.put_nowait(queue)

    def notify_full_pick(self, queue: str) -> None:
        self.full.append(queue)

    def notify_rows_not_found(self, queue: str) -> None:
        self.missed.append(queue)

    def register(self, claim: Claim, leased_at: float) -> Claim:
        self.leased_at = leased_at
        return claim

    def postpone_soon(self, claim: Claim, reason: str) -> None:
        self.postponed.append((claim.id, reason))
