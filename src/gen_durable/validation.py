"""Bounds on names, keys, durations, numbers and sizes.

Each check takes a value and the name that error messages give it, and returns the value as it is stored. Checks run
before any statement is sent, so a bad value never fails a batch.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from gen_durable.durations import Duration
from gen_durable.errors import GenDurableError, InputError, TooLarge

MAX_PAYLOAD: Final = 1_000_000
MAX_DEPTH: Final = 64
MAX_KEY: Final = 512
MAX_ERROR: Final = 8_000
MAX_CHILDREN: Final = 100_000
MAX_SPAWNED: Final = 1000
MAX_CHILDREN_BYTES: Final = 64_000_000
MAX_BATCH: Final = 10_000
MAX_BATCH_BYTES: Final = 64_000_000
MAX_INBOX: Final = 10_000  # signal.sql
MAX_CLAIM_PART: Final = 64_000_000  # bytes: of an inbox (signal.sql), of children, of the activities of a visit
MAX_METADATA: Final = 8_000
MAX_DELAY: Final = timedelta(days=36_500)
MIN_YEAR: Final = 2  # require_valid_starts.sql
MAX_YEAR: Final = 9998  # require_valid_starts.sql
_MAX_SECONDS: Final = MAX_DELAY.total_seconds()

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,200}")


def check_name(name: str, what: str, error: type[GenDurableError] = InputError) -> str:
    """Names of machines, steps, queues and signals: letters, digits and `_ . : -`, at most 200 of them."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise error(f"{what} must be 1 to 200 characters out of A-Z a-z 0-9 _ . : - , got {_shorten_value(name)}")
    return name


def to_stored_key(key: str | bytes, what: str) -> bytes:
    """A unique key as it is stored: verbatim as bytes; a str is taken as UTF-8."""
    if isinstance(key, str):
        try:
            raw = key.encode()
        except UnicodeEncodeError:
            raise InputError(f"{what} holds a lone surrogate and has no UTF-8 form") from None
    elif isinstance(key, bytes):
        raw = key
    else:
        raise InputError(f"{what} must be str or bytes, got {type(key).__name__}")
    if not raw:
        raise InputError(f"{what} must not be empty: leave it out for an instance without one")
    if len(raw) > MAX_KEY:
        raise TooLarge(f"{what} is {len(raw)} bytes, at most {MAX_KEY} are allowed: use a hash of it")
    return raw


def check_text_key(key: str, what: str) -> str:
    """Partition and dedup keys: text, so without NUL characters."""
    if not isinstance(key, str):
        raise InputError(f"{what} must be str, got {type(key).__name__}")
    to_stored_key(key, what)
    if "\0" in key:
        raise InputError(f"{what} holds a NUL character, which Postgres cannot store")
    return key


def to_stored_group(group: tuple[str, str]) -> str:
    """A group of a fair queue, as it is stored: of what kind, and which."""
    if not isinstance(group, tuple) or len(group) != 2:
        raise InputError(f"group must be a pair such as ('tenant', 'acme'), got {_shorten_value(group)}")
    return f"{check_name(group[0], 'the kind of a group')}/{check_text_key(group[1], 'a group')}"


def check_priority(priority: int) -> int:
    """Priorities fit a smallint; lower runs earlier."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not -32768 <= priority <= 32767:
        raise InputError(f"priority must be an int from -32768 to 32767 (lower runs earlier), got {priority!r}")
    return priority


def check_delay(delay: Duration, what: str, error: type[GenDurableError] = InputError) -> float:
    """A duration in seconds, from 0 to 36,500 days. The database adds it to its own clock."""
    seconds = _as_seconds(delay, what, error)
    if seconds < 0:
        raise error(f"{what} must not be negative, got {delay}")
    return seconds


def check_positive_duration(delay: Duration, what: str, error: type[GenDurableError] = InputError) -> float:
    """A duration in seconds, as `check_delay`, and above zero."""
    seconds = _as_seconds(delay, what, error)
    if seconds <= 0:
        raise error(f"{what} must be above zero, got {delay}")
    return seconds


def _as_seconds(delay: Duration, what: str, error: type[GenDurableError]) -> float:
    if isinstance(delay, timedelta):
        seconds: float = delay.total_seconds()
    elif isinstance(delay, (int, float)) and not isinstance(delay, bool):
        seconds = delay  # not float(delay) yet: a huge int overflows before the bound below refuses it
    else:
        raise error(f"{what} must be a timedelta or a number of seconds, got {_shorten_value(delay)}")
    if not seconds <= _MAX_SECONDS:  # the comparison is also false for NaN
        raise error(f"{what} must be at most {MAX_DELAY.days} days, got {_shorten_value(delay)}")
    return seconds if seconds < 0 else float(seconds)


def check_moment(moment: datetime, what: str) -> datetime:
    """A point in time: aware, for a naive one means a different moment to every reader."""
    if not isinstance(moment, datetime):
        raise InputError(f"{what} must be a datetime, got {type(moment).__name__}")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InputError(f"{what} must be timezone-aware, got the naive {moment}: use datetime.now(UTC)")
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise InputError(f"{what} is beyond the years 1 to 9999 in UTC, got {moment}") from None
    return moment


def check_schedule_moment(moment: datetime, what: str) -> datetime:
    """A moment at which a row becomes due. Drivers send the first and the last datetime as infinity."""
    year = check_moment(moment, what).astimezone(UTC).year
    if not MIN_YEAR <= year <= MAX_YEAR:
        raise InputError(f"{what} must be in the years {MIN_YEAR} to {MAX_YEAR} in UTC, got {moment}")
    return moment


def to_storable_error(text: str) -> str:
    """Error text as it can be stored: no NUL, no lone surrogate, at most 8,000 characters."""
    text = to_storable_text(text)
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 14] + " ... [cut off]"


def to_storable_text(text: str) -> str:
    """Text as it can be stored: NUL characters and lone surrogates are escaped."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()


def _shorten_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
