"""Instances, payloads and times as words. `console.py` makes them printable."""

from __future__ import annotations

import json
from datetime import datetime

from gen_durable.errors import DecodeError
from gen_durable.instances import Instance
from gen_durable.json_codec import ENCRYPTED_PREFIX, decode_untyped_payload


def format_relative_time(then: datetime, now: datetime) -> str:
    """`2h ago` for the past, `in 2h` for the future."""
    seconds = (now - then).total_seconds()
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.0f}{unit} ago" if seconds > 0 else f"in {-seconds / size:.0f}{unit}"
    return f"{max(seconds, 0):.0f}s ago" if seconds > -1 else f"in {-seconds:.0f}s"


def text_or_encrypted_hint(text: str | None) -> str:
    """The text, or a hint if it is encrypted."""
    return "(encrypted: --codec reads it)" if text is not None and text.startswith(ENCRYPTED_PREFIX) else text or ""


def format_payload(raw: bytes) -> str:
    """A payload as indented JSON, or the reason why it cannot be read."""
    try:
        return json.dumps(decode_untyped_payload(raw), indent=2, ensure_ascii=False)
    except DecodeError as error:
        return f"({error})"


def decode_payload_as_stored(raw: bytes | None) -> object:
    """A payload for --json, as it is stored: an encrypted one stays encrypted."""
    try:
        return None if raw is None else json.loads(raw)
    except (RecursionError, ValueError):  # ValueError: a number of more than 4,300 digits
        return f"(JSON of {len(raw or b''):,} bytes that cannot be read: nested too deep, or a number is too long)"


def format_unique_key(key: bytes | None) -> str | None:
    """A unique key as text; bytes that are not UTF-8 are escaped."""
    return None if key is None else key.decode(errors="backslashreplace")


def describe_wait_worker_or_error(instance: Instance, now: datetime) -> str:
    """A few words: the gate or signals an instance waits for, the worker that runs it, or its last error."""
    if instance.problems:
        return f"cannot be read: {'; '.join(instance.problems)}"
    if wait := describe_wait_or_worker(instance, now):
        return wait
    error = text_or_encrypted_hint(instance.last_error)
    return f"previous error: {error}" if instance.has_previous_error else error


def describe_wait_or_worker(instance: Instance, now: datetime) -> str:
    """The gate, signals or children that an instance waits for, or the worker that runs it; else an empty text."""
    gate, _, key = (instance.blocked_on or "").partition("/")
    if gate in ("crashed", "last_chance"):
        return f"runs apart after {instance.crashes:,} crashes"
    if gate == "rate":
        return f"rate limit {key}, expected after the instances before it"
    if gate:
        return f"blocked on {instance.blocked_on}"
    if instance.token_at is not None and instance.token_at > now:
        return f"rate limit {instance.rate_key}, expected {format_relative_time(instance.token_at, now)}"
    match instance.status:
        case "awaiting_signal":
            return f"waits for {', '.join(instance.awaits)}"
        case "awaiting_children":
            return _describe_children_waited_for(instance)
        case "executing":
            return f"on {instance.locked_by}"
        case _:
            return ""


def _describe_children_waited_for(instance: Instance) -> str:
    pending, needed = instance.children_pending, instance.children_needed
    if needed is None or needed >= pending:
        return f"waits for {pending:,} {'child' if pending == 1 else 'children'}"
    return f"waits for {needed:,} more of {pending:,} pending children"


def instance_json_fields(instance: Instance, *, payloads: bool) -> dict[str, object]:
    """An instance for --json; with its state and result only if `payloads`."""
    found: dict[str, object] = {
        "id": instance.id,
        "machine": instance.machine,
        "version": instance.version,
        "step": instance.step,
        "status": instance.status.value,
        "queue": instance.queue,
        "priority": instance.priority,
        "partition_key": instance.partition_key,
        "unique_key": format_unique_key(instance.unique_key),
        "awaits": list(instance.awaits),
        "blocked_on": instance.blocked_on,
        "attempt": instance.attempt,
        "crashes": instance.crashes,
        "claims": instance.claims,
        "seq": instance.seq,
        "last_error": instance.last_error,
        "error_type": instance.error_type,
        "locked_by": instance.locked_by,
        "parent_id": instance.parent_id,
        "children_pending": instance.children_pending,
        "children_needed": instance.children_needed,
        "rate_key": instance.rate_key,
        "step_errors": instance.step_errors,
        "postponements": instance.postponements,
        "has_previous_error": instance.has_previous_error,
    }
    times = ("eligible_at", "due_at", "token_at", "await_deadline", "inserted_at", "started_at", "updated_at")
    for name in (*times, "finished_at"):
        value = getattr(instance, name)
        found[name] = None if value is None else value.isoformat()
    found["metadata"] = instance.metadata
    found["problems"] = list(instance.problems)
    if not payloads:
        return found
    return found | {
        "state": decode_payload_as_stored(instance.raw_state),
        "result": decode_payload_as_stored(instance.raw_result),
    }


def format_duration(seconds: float) -> str:
    """`12.3 ms` or `4.5 s`."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
