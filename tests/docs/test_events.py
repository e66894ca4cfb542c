"""docs/reference/events.md lists every event with every field, and its example runs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

from gen_durable import telemetry
from gen_durable.telemetry import Event, Events, RowsThrottled, StepCommitted

PAGE = (Path(__file__).parents[2] / "docs/reference/events.md").read_text()


def documented() -> dict[str, list[str]]:
    """The fields of each event, in the order of the page."""
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", PAGE, re.MULTILINE)
    return {name: re.findall(r"`([a-z_]+)`", fields) for name, fields in rows}


def test_every_event_is_listed_with_its_fields() -> None:
    events = {event.__name__: {field.name for field in dataclasses.fields(event)} for event in get_args(Event)}
    found = documented()
    assert {name: set(fields) for name, fields in found.items()} == events
    assert all(len(fields) == len(set(fields)) for fields in found.values())


def test_no_event_is_missing_in_the_union() -> None:
    classes = {name for name, one in vars(telemetry).items() if dataclasses.is_dataclass(one)}
    assert {event.__name__ for event in get_args(Event)} == classes


def test_the_example_runs() -> None:
    """It is subscribed, called for the events it names, and ended by the function that `subscribe` returns."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    seen: list[tuple[str, float]] = []

    class App:
        events = Events()

    names: dict[str, Any] = {
        "app": App,
        "histogram": lambda *args: seen.append(args),
        "gauge": lambda *a: seen.append(a),
    }
    exec(code, names)
    App.events.emit(StepCommitted(1, "Checkout", 1, "charge", "Next", 0, 0.25))
    App.events.emit(RowsThrottled("mail", 2, 5, 3, "default", 7, "send"))
    names["stop"]()
    App.events.emit(StepCommitted(1, "Checkout", 1, "charge", "Next", 0, 0.25))
    assert seen == [("Checkout.charge.Next", 0.25), ("throttled.mail", 2)]
