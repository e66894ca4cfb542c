"""Which session takes the next step: every order once, or a random sample of the orders.

The steps that have been taken form a tree. A schedule goes from its root to a leaf and leaves out the branches that are
done, so no schedule is run twice, and a sample that is as large as the tree is the whole tree.

Two sessions take the same steps whenever a schedule is repeated. Of three, a COMMIT can release two at once, which then
run on to their next stops side by side: a sample follows them wherever they have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

STAY = (0.0, 0.5, 0.9)  # how probable it is that a session takes the next step too: drawn anew for each schedule


@dataclass(frozen=True, slots=True)
class Sample:
    """At most `count` schedules, chosen by the seed: the same seed gives the same schedules."""

    seed: int
    count: int


@dataclass(slots=True)
class _Node:
    names: tuple[str, ...] = ()
    after: dict[str, _Node] = field(default_factory=dict)
    is_done: bool = False


class Schedules:
    """The schedules that have been run, and the one that is being run."""

    def __init__(self, sample: Sample | None = None) -> None:
        self._sample = sample
        self._root = _Node()
        self._count = 0
        self._path = [self._root]
        self._taken: list[str] = []
        self._random = Random()
        self._stay = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether every schedule has been run."""
        return self._root.is_done

    def begin(self) -> bool:
        """Begin another schedule. Returns False if there is none, or the sample is complete."""
        if self._root.is_done or (self._sample is not None and self._count >= self._sample.count):
            return False
        if self._sample is not None:
            self._random = Random(f"{self._sample.seed} {self._count}")
            self._stay = self._random.choice(STAY)
        self._count += 1
        self._path, self._taken = [self._root], []
        return True

    def choose(self, names: Sequence[str]) -> str:
        """Choose one of the sessions that can take a step."""
        node = self._path[-1]
        missing = [name for name in node.after if name not in names]
        if missing and self._sample is None:
            raise AssertionError(f"{self.text} cannot be repeated: {missing} cannot take a step any more, only {names}")
        node.names = tuple(names)
        fresh = [name for name in names if name not in node.after or not node.after[name].is_done]
        chosen = fresh[0] if self._sample is None else self._draw(fresh or names)
        self._path.append(node.after.setdefault(chosen, _Node()))
        self._taken.append(chosen)
        return chosen

    def end(self) -> str:
        """End the schedule. Returns its text: the name of the session for each step."""
        for node in reversed(self._path):
            node.is_done = all(name in node.after and node.after[name].is_done for name in node.names)
            if not node.is_done:
                break
            for child in node.after.values():
                child.after.clear()
        return self.text

    @property
    def text(self) -> str:
        return "".join(self._taken)

    def _draw(self, names: Sequence[str]) -> str:
        last = self._taken[-1] if self._taken else ""
        if last in names and self._random.random() < self._stay:
            return last
        return self._random.choice(names)
