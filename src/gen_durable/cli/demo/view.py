"""What the story shows and to whom: the scene, the tone of an event, and the door that a view has."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from gen_durable.cli.demo.processes import Member
from gen_durable.doctor import StepCount


class Tone(StrEnum):
    """How an event is meant; views colour it."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line."""

    at: float
    text: str
    tone: Tone


@dataclass(slots=True)
class Scene:
    """How things stand at a moment; `at` counts seconds since the shop opened."""

    where: str
    at: float = 0.0
    members: list[Member] = field(default_factory=list[Member])
    counts: list[StepCount] = field(default_factory=list[StepCount])
    events: list[Event] = field(default_factory=list[Event])


class Stage(Protocol):
    """A view of the story."""

    def event(self, event: Event) -> None:
        """Something happened."""
        ...

    def show(self, scene: Scene) -> None:
        """A moment has passed."""
        ...
