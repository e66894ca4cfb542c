"""Events: told to everyone who listens, and unable to break the engine."""

from __future__ import annotations

import logging
from dataclasses import FrozenInstanceError
from typing import Any, cast, get_args

import pytest

from gen_durable.telemetry import ClaimsReaped, Event, Events, InstancesCollected


def test_every_subscriber_hears_every_event_in_order() -> None:
    """Events are active only while somebody listens."""
    events = Events()
    assert not events.active
    events.emit(InstancesCollected(1))
    first: list[Event] = []
    second: list[Event] = []
    events.subscribe(first.append)
    assert events.active
    events.subscribe(second.append)
    events.emit(InstancesCollected(2))
    events.emit(ClaimsReaped((3,)))
    assert first == second == [InstancesCollected(2), ClaimsReaped((3,))]


def test_unsubscribing_ends_one_subscription() -> None:
    """The same function subscribed twice is heard once after one of them ended; ending twice does no harm."""
    events = Events()
    heard: list[Event] = []
    end_first = events.subscribe(heard.append)
    end_second = events.subscribe(heard.append)
    events.emit(InstancesCollected(1))
    assert len(heard) == 2
    end_first()
    end_first()
    assert events.active
    events.emit(InstancesCollected(2))
    assert len(heard) == 3
    end_second()
    assert not events.active
    events.emit(InstancesCollected(3))
    assert len(heard) == 3


def test_a_broken_subscriber_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged once, the others still hear, and the engine goes on."""
    events = Events()
    heard: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("no network")

    events.subscribe(broken)
    events.subscribe(heard.append)
    with caplog.at_level(logging.ERROR, "gen_durable.telemetry"):
        for number in range(3):
            events.emit(InstancesCollected(number))
    assert len(heard) == 3
    assert [record.message for record in caplog.records] == [
        "a telemetry subscriber raised; its further errors are not logged"
    ]


def test_each_broken_subscriber_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """A new subscription that breaks is logged, even of a function that broke before."""
    events = Events()

    def broken(event: Event) -> None:
        raise RuntimeError("no network")

    for _ in range(2):
        end = events.subscribe(broken)
        events.emit(InstancesCollected(1))
        end()
    assert len(caplog.records) == 2


def test_a_subscriber_may_unsubscribe_while_it_is_called() -> None:
    """The event that is under way still reaches the others."""
    events = Events()
    heard: list[Event] = []

    def once(event: Event) -> None:
        end()

    end = events.subscribe(once)
    events.subscribe(heard.append)
    events.emit(InstancesCollected(1))
    events.emit(InstancesCollected(2))
    assert len(heard) == 2


def test_events_are_frozen_values_without_payloads() -> None:
    """No event has a field for a state, a result or a payload, and none can be changed by a subscriber."""
    for kind in get_args(Event):
        assert not {"state", "result", "payload"} & set(kind.__dataclass_fields__), kind
        assert kind.__dataclass_params__.frozen, kind
    with pytest.raises(FrozenInstanceError):
        cast(Any, InstancesCollected(1)).count = 2
