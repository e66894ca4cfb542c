"""FairQueueCursors: whose turn it is next in fair queues, and nothing at all where none is fair."""

from __future__ import annotations

import json

from gen_durable.engine.picker import FairQueueCursors
from gen_durable.store.types import PickResult
from gen_durable.worker_options import Queue, WorkerOptions


def picked(**turns: str | None) -> PickResult:
    """An answer that tells whose turn was last."""
    return PickResult([], [], last_groups=turns)


def test_without_a_fair_queue_nothing_is_sent() -> None:
    """The argument stays null, so that a pick does not even look for groups."""
    options = WorkerOptions(queues={"default": 10, "mail": Queue(5)})
    assert options.group_kind_by_queue == {}
    assert FairQueueCursors(options.group_kind_by_queue).to_pick_argument(["default", "mail"]) is None


def test_only_what_is_asked_of_fair_queues_is_sent() -> None:
    """A pick of queues that are not fair sends nothing either."""
    options = WorkerOptions(queues={"default": Queue(10, fair_by="tenant"), "mail": 5})
    assert options.group_kind_by_queue == {"default": "tenant"}
    turns = FairQueueCursors(options.group_kind_by_queue)
    assert turns.to_pick_argument(["mail"]) is None
    assert json.loads(turns.to_pick_argument(["default", "mail"]) or "") == {"default": ["tenant", None]}


def test_the_next_pick_goes_on_after_the_last_turn() -> None:
    """What one pick was told the next one sends, queue by queue."""
    turns = FairQueueCursors({"a": "tenant", "b": "tenant"})
    turns.update_from_pick(picked(a="tenant/acme"))
    assert json.loads(turns.to_pick_argument(["a", "b"]) or "") == {
        "a": ["tenant", "tenant/acme"],
        "b": ["tenant", None],
    }
    turns.update_from_pick(picked(b="tenant/zoo"))
    assert json.loads(turns.to_pick_argument(["b", "a"]) or "") == {
        "a": ["tenant", "tenant/acme"],
        "b": ["tenant", "tenant/zoo"],
    }
