"""What commands about instances share: the client they ask with, how an instance is named, how moments are written."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeVar, cast

import typer

from gen_durable.cli.console import fail
from gen_durable.cli.database import reach
from gen_durable.cli.load import load
from gen_durable.client import Durable
from gen_durable.codec import SEALED, decode_payload
from gen_durable.encryption import PayloadCodec
from gen_durable.errors import DecodeError, NoTarget, NotFound, WrongStatus
from gen_durable.instances import Instance
from gen_durable.store.schema import Schema

T = TypeVar("T")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

IdArgument = Annotated[int | None, typer.Argument(metavar="ID", show_default=False, help="The instance's id.")]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="KEY", show_default=False, help="Its unique key, instead of the id.")
]


CodecOption = Annotated[
    str | None,
    typer.Option(
        "--codec",
        envvar="GEN_DURABLE_CODEC",
        metavar="MODULE:NAME",
        show_default=False,
        help="The codec that payloads are encrypted with, as your Durable(codec=...) has it.",
    ),
]


async def ask(
    dsn: str | None, schema: str, question: Callable[[Durable], Awaitable[T]], *, codec: str | None = None
) -> T:
    """Ask one thing of the database. What is not there, or not in a status for it, ends the command with 1."""
    Schema(schema)  # refuses a bad name before anything is connected
    given = None if codec is None else cast(PayloadCodec, load(codec))
    async with reach(dsn) as database, Durable(database.dsn, schema=schema, pool_size=1, codec=given) as app:
        try:
            return await question(app)
        except (NotFound, NoTarget, WrongStatus) as error:
            fail(str(error), 1)


def target(instance: int | None, key: str | None) -> int | str:
    """The instance that is meant: by id, or by key."""
    if (instance is None) == (key is None):
        fail("name the instance either by its ID or by --key KEY")
    return instance if instance is not None else key or ""


def moment(text: str | None, option: str) -> datetime | None:
    """A moment: so long ago (90s, 10m, 2h, 3d), or a date with or without a time; without a zone it is local time."""
    if text is None:
        return None
    if found := _SPAN.fullmatch(text):
        return datetime.now(UTC) - timedelta(seconds=float(found[1]) * _UNITS[found[2]])
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        fail(f"{option} {text!r} is no moment: write 10m, 2h or 3d for so long ago, or 2026-01-31T12:00")


def since(then: datetime, now: datetime) -> str:
    """How long ago a moment is, or how long it will be."""
    seconds = (now - then).total_seconds()
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.0f}{unit} ago" if seconds > 0 else f"in {-seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s ago" if seconds > -1 else f"in {-seconds:.0f}s"


def plain(text: str) -> str:
    """Text of a machine's, for a terminal: nothing in it can move the cursor or change colours."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def words(text: str | None) -> str:
    """An error's text, or that it cannot be read."""
    return "(encrypted: --codec reads it)" if text is not None and text.startswith(SEALED) else text or ""


def payload(raw: bytes) -> str:
    """A payload for people: indented, or why it cannot be read."""
    try:
        return json.dumps(decode_payload(raw), indent=2, ensure_ascii=False)
    except DecodeError as error:
        return f"({error})"


def stored(raw: bytes | None) -> object:
    """A payload for --json; one that is encrypted is told as it is stored."""
    return None if raw is None else json.loads(raw)


def note(one: Instance) -> str:
    """In a few words, what an instance waits for or why it has ended."""
    if one.blocked_on is not None:
        return f"blocked on {one.blocked_on}"
    match one.status:
        case "awaiting_signal":
            return f"waits for {', '.join(one.awaits)}"
        case "awaiting_children":
            return f"waits for {one.children_pending:,} children"
        case "executing":
            return f"on {one.locked_by}"
        case _:
            return words(one.last_error)


def fields(one: Instance, *, payloads: bool) -> dict[str, object]:
    """An instance for --json; state and result only if they are asked for."""
    key = None if one.unique_key is None else one.unique_key.decode(errors="backslashreplace")
    told: dict[str, object] = {
        "id": one.id,
        "machine": one.machine,
        "version": one.version,
        "step": one.step,
        "status": one.status.value,
        "queue": one.queue,
        "priority": one.priority,
        "partition_key": one.partition_key,
        "unique_key": key,
        "awaits": list(one.awaits),
        "blocked_on": one.blocked_on,
        "attempt": one.attempt,
        "crashes": one.crashes,
        "claims": one.claims,
        "seq": one.seq,
        "last_error": one.last_error,
        "locked_by": one.locked_by,
        "parent_id": one.parent_id,
        "children_pending": one.children_pending,
    }
    for name in ("eligible_at", "due_at", "await_deadline", "inserted_at", "updated_at", "finished_at"):
        value = getattr(one, name)
        told[name] = None if value is None else value.isoformat()
    told["metadata"] = one.metadata
    if not payloads:
        return told
    return told | {"state": stored(one.raw_state), "result": stored(one.raw_result)}
