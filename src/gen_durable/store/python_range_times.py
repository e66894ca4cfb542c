"""Times that Python cannot represent: Postgres knows years before 1 and after 9999, and infinity.

The driver fails on such a value, and with it all rows of the answer. So statements ask for times within Python's range:
a time outside of it comes back as its nearest end, which no real time has (tests/security/test_unreadable_rows.py).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

# A day inside of Python's range, so that a conversion to a local time zone stays in it.
EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
LATEST: Final = datetime(9999, 12, 30, tzinfo=UTC)


def clamped_time(column: str) -> str:
    """The SQL that reads a column of type timestamptz within the range."""
    earliest, latest = (
        f"'{end.year:04}-{end:%m-%d} 00:00:00+00'::pg_catalog.timestamptz" for end in (EARLIEST, LATEST)
    )
    return f"case when {column} is not null then greatest({earliest}, least({latest}, {column})) end"


def is_clamped(time: datetime | None) -> bool:
    """Whether a time that was read with `clamped_time` stands for one that Python cannot represent."""
    return time is not None and (time in (EARLIEST, LATEST))


def time_from_epoch(seconds: float | str) -> datetime:
    """The time of a number of seconds since 1970, within the range; JSON has infinity as a text."""
    number = float(seconds)
    if number <= EARLIEST.timestamp():
        return EARLIEST
    return LATEST if number >= LATEST.timestamp() else datetime.fromtimestamp(number, UTC)
