"""What the client refuses: with an error of our tree that says what was wrong, and with nothing written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.support.engine import Opening, unlike

from gen_durable import Context, Done, Machine, Outcome, Signal, Start, job, step
from gen_durable.errors import EncodeError, GenDurableError, InputError, TooLarge


@dataclass(frozen=True)
class Order:
    id: int
    note: str = ""


class Shop(Machine):
    @step
    async def open(self, order: Order, ctx: Context) -> Outcome[str]:
        return Done("open")


@job
async def anything(value: dict[str, Any]) -> None:
    """Takes a dict."""


def plain(order: Order, ctx: Context) -> None:
    """No step."""


news = Signal("news", Order)
LATE = timezone(-timedelta(hours=12))

OPTIONS: list[tuple[str, dict[str, Any], type[GenDurableError], str]] = [
    ("naive", {"schedule_at": datetime(2040, 1, 1)}, InputError, "timezone-aware"),  # noqa: DTZ001
    ("no datetime", {"schedule_at": "2040-01-01"}, InputError, "schedule_at must be a datetime"),
    ("beyond all years", {"schedule_at": datetime.max.replace(tzinfo=LATE)}, InputError, "schedule_at"),
    ("delay and schedule", {"schedule_at": datetime.now(UTC), "delay": timedelta(1)}, InputError, "not both"),
    ("delay as text", {"delay": "5"}, InputError, "delay must be a timedelta"),
    ("negative delay", {"delay": timedelta(seconds=-1)}, InputError, "delay must not be negative"),
    ("huge delay", {"delay": timedelta(days=50_000)}, InputError, "delay must be at most"),
    ("priority above", {"priority": 40_000}, InputError, "priority must be an int from -32768 to 32767"),
    ("priority below", {"priority": -32_769}, InputError, "priority"),
    ("priority as text", {"priority": "1"}, InputError, "priority"),
    ("priority as bool", {"priority": True}, InputError, "priority"),
    ("empty key", {"unique_key": ""}, InputError, "unique_key must not be empty"),
    ("empty bytes", {"unique_key": b""}, InputError, "unique_key must not be empty"),
    ("long key", {"unique_key": "ä" * 257}, TooLarge, "unique_key is 514 bytes, at most 512"),
    ("key of a wrong type", {"unique_key": 7}, InputError, "unique_key must be str or bytes, got int"),
    ("surrogate key", {"unique_key": "\ud800"}, InputError, "unique_key holds a lone surrogate"),
    ("empty partition", {"partition_key": ""}, InputError, "partition_key must not be empty"),
    ("binary partition", {"partition_key": b"x"}, InputError, "partition_key must be str"),
    ("NUL partition", {"partition_key": "a\0b"}, InputError, "partition_key holds a NUL"),
    ("empty queue", {"queue": ""}, InputError, "queue must be 1 to 200"),
    ("odd queue", {"queue": "a b"}, InputError, "queue must be 1 to 200"),
    ("no status", {"unique_key": "k", "unique_scope": ("runnable", "sleeping")}, InputError, "'sleeping'"),
    ("scope without runnable", {"unique_key": "k", "unique_scope": ("done",)}, InputError, "must include 'runnable'"),
    ("scope as a number", {"unique_key": "k", "unique_scope": 7}, InputError, "unique_scope"),
    ("both scopes", {"unique_key": "k", "unique": "live", "unique_scope": ["runnable"]}, InputError, "not both"),
    ("another scope", {"unique_key": "k", "unique": "always"}, InputError, "'live' or 'forever'"),
    ("forever without a key", {"unique": "forever"}, InputError, "needs a unique_key"),
    ("a negative keep", {"keep": -1}, InputError, "keep must not be negative"),
    ("keep as text", {"keep": "1 day"}, InputError, "keep must be a timedelta"),
    ("on_conflict", {"on_conflict": "replace"}, InputError, "on_conflict must be"),
]


async def test_options(engine: Opening) -> None:
    """Each impossible option is refused by name."""
    async with engine() as e:
        wrong = [
            (name, problem)
            for name, options, error, words in OPTIONS
            if (problem := await unlike(e.app.insert(Shop.open, Order(1), **options), error, words)) is not None
        ]
        assert wrong == []
        assert await e.rows.count() == 0


async def test_an_option_that_is_unknown(engine: Opening) -> None:
    """A misspelt option is an error that names it, not one that is passed over."""
    options: Any = {"prio": 1}
    async with engine() as e:
        with pytest.raises(InputError, match="has no option 'prio'"):
            await e.app.insert(Shop.open, Order(1), **options)
        assert await e.rows.count() == 0


STATES: list[tuple[str, object, object, type[GenDurableError], str]] = [
    ("another type", Shop.open, "order", EncodeError, "the state of Shop.open takes Order, got str"),
    ("a dict for a class", Shop.open, {"id": 1}, EncodeError, "takes Order, got dict"),
    ("None", Shop.open, None, EncodeError, "takes Order, got NoneType"),
    ("5 MB", Shop.open, Order(1, "x" * 5_000_000), TooLarge, "5,000,0.. bytes of JSON, at most 1,000,000"),
    ("NUL", Shop.open, Order(1, "a\0b"), EncodeError, "NUL character"),
    ("lone surrogate", Shop.open, Order(1, "\udcff"), EncodeError, "lone surrogate"),
    ("NaN", anything, {"x": float("nan")}, EncodeError, "NaN or an infinity"),
    ("object", anything, {"x": object()}, EncodeError, "cannot be stored as JSON"),
]


async def test_states(engine: Opening) -> None:
    """A state that does not fit the step, or cannot be stored, is refused in the caller's own call."""
    async with engine() as e:
        wrong = [
            (name, problem)
            for name, step_, state, error, words in STATES
            if (problem := await unlike(e.app.insert(step_, state), error, words)) is not None
        ]
        assert wrong == []
        assert await e.rows.count() == 0


async def test_a_refusal_quotes_no_payload(engine: Opening) -> None:
    """Messages say types and sizes, never the values."""
    async with engine() as e:
        for state in (Order(1, "canary\0"), Order(1, "canary" * 500_000), "canary"):
            with pytest.raises(InputError) as caught:
                await e.app.insert(Shop.open, state)  # type: ignore[arg-type]  # wrong on purpose
            assert "canary" not in str(caught.value)


NO_STEPS: list[tuple[str, Callable[[], object], str]] = [
    ("a function", lambda: plain, "'plain', which is not a step"),
    ("a class", lambda: Shop, "not a step"),
    ("a name", lambda: "Shop.open", "takes a step"),
    ("None", lambda: None, "takes a step"),
    ("a called step", lambda: Shop().open(Order(1), None), "was called"),  # type: ignore[arg-type]  # never run
]


async def test_what_is_no_step(engine: Opening) -> None:
    """Only a step or a job can be inserted; the message says what was passed instead."""
    async with engine() as e:
        make: Callable[[], Any]
        for _, make, words in NO_STEPS:
            with pytest.raises(GenDurableError, match=words):
                await e.app.insert(make(), Order(1))
        assert await e.rows.count() == 0


async def test_a_refused_insert_is_an_input_error(engine: Opening) -> None:
    """`except InputError` catches every refusal of `insert`: no outcome is in sight there."""
    async with engine() as e:
        with pytest.raises(InputError):
            await e.app.insert(plain, Order(1))  # type: ignore[arg-type]  # wrong on purpose


async def test_insert_many_takes_starts(engine: Opening) -> None:
    """Anything else than `Start` in the list is refused, and nothing is written."""
    starts: Any
    async with engine() as e:
        for starts in ([Order(1)], [Shop.open], ["x"], [Start(Shop.open, Order(1)), None]):
            with pytest.raises(InputError, match=r"takes Start\(...\) values"):
                await e.app.insert_many(starts)
        assert await e.rows.count() == 0


async def test_targets(engine: Opening) -> None:
    """What cannot name an instance is refused by `signal` and `get` alike."""
    target: Any
    async with engine() as e:
        for target in (None, 1.5, True, 0, -1, 2**63, "", b"", "k" * 600, object()):
            with pytest.raises(InputError):
                await e.app.signal(target, news, Order(1))
            with pytest.raises(InputError):
                await e.app.get(target)


async def test_handle_takes_an_id_or_a_key(engine: Opening) -> None:
    """Every other value is refused before the handle is used."""
    target: Any
    async with engine() as e:
        for target in (None, True, 0, 2**63, "", b"", 1.5):
            with pytest.raises(InputError):
                e.app.handle(target, Shop.open)


async def test_signals(engine: Opening) -> None:
    """A signal needs a declared `Signal`, a fitting payload and a usable dedup key; refused ones are not delivered."""
    send: Any
    async with engine() as e:
        handle = await e.app.insert(Shop.open, Order(1))
        send = e.app.signal
        with pytest.raises(InputError, match="takes a Signal, got str"):
            await send(handle, "news", Order(1))
        with pytest.raises(EncodeError, match="signal 'news' takes Order, got int"):
            await send(handle, news, 5)
        with pytest.raises(EncodeError, match="takes Order, got NoneType"):
            await send(handle, news)
        with pytest.raises(TooLarge):
            await send(handle, news, Order(1, "x" * 5_000_000))
        for bad in ("", "a\0", 7, "x" * 513):
            with pytest.raises(InputError, match="dedup_key"):
                await send(handle, news, Order(1), dedup_key=bad)
        assert await e.rows.value("select count(*) from @.signals") == 0


async def test_wait_takes_a_duration(engine: Opening) -> None:
    """A timeout is a `timedelta` or a number of seconds, and not negative."""
    timeout: Any
    async with engine() as e:
        handle = await e.app.insert(Shop.open, Order(1))
        for timeout in (-1, True, "1 s", timedelta(seconds=-1)):
            with pytest.raises(InputError, match="timeout"):
                await handle.wait(timeout)
