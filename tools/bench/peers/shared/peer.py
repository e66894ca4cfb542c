"""Shared by the drivers of the peers. It runs in their environments, so it imports only the standard library."""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

CHAIN = 5
WARM = 5


@dataclass(frozen=True)
class Task:
    """The task of a driver: `drain`, `chain` or `latency`, and how much of it."""

    work: str
    count: int
    dsn: str


def read_task() -> Task:
    """The task on the command line; the database in PEER_DSN."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", choices=("drain", "chain", "latency"))
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    return Task(given.work, given.count, os.environ["PEER_DSN"])


class DrainResult:
    """Counts committed ends, from any thread, and signals when there are enough of them."""

    def __init__(self, goal: int) -> None:
        self._goal = goal
        self._count = 0
        self._lock = threading.Lock()
        self._began = 0.0
        self.seconds = 0.0
        self.full = threading.Event()

    def start(self) -> None:
        self._began = time.monotonic()

    def add(self, count: int = 1) -> None:
        with self._lock:
            self._count += count
            if self._count >= self._goal and not self.full.is_set():
                self.seconds = time.monotonic() - self._began
                self.full.set()


def report_rate(settings: str, *, count: int, seconds: float) -> None:
    """Report a drain or a chain; `count` in jobs or steps."""
    print(json.dumps({"settings": settings, "count": count, "seconds": seconds}), flush=True)


def report_samples(settings: str, samples: Sequence[float]) -> None:
    """Report latencies in seconds."""
    print(json.dumps({"settings": settings, "samples": list(samples)}), flush=True)
