"""The bounds on names, keys, numbers and times: exact, and each refusal names the bound."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from gen_durable.errors import ConfigError, DefinitionError, InputError, TooLarge
from gen_durable.validation import (
    MAX_DELAY,
    MAX_ERROR,
    check_delay,
    check_moment,
    check_name,
    check_priority,
    check_text_key,
    to_storable_error,
    to_stored_key,
)


@pytest.mark.parametrize("name", ["a", "A-Z_0.9:x", "x" * 200, "1", "-", "tidy-up"])
def test_names_of_the_alphabet_are_taken(name: str) -> None:
    """Letters, digits and _ . : - make a name, up to 200 of them."""
    assert check_name(name, "x") == name


@pytest.mark.parametrize(
    "name", ["", "x" * 201, "a b", "a/b", "ü", "a\n", "\n", "a\0", "*", "a'b", 'a"b', None, 5, b"a"]
)
def test_other_names_are_refused(name: Any) -> None:
    """Anything else is refused, a trailing newline too, with the kind of error that the place asks for."""
    with pytest.raises(InputError, match="a queue must be 1 to 200 characters"):
        check_name(name, "a queue")
    with pytest.raises(DefinitionError):
        check_name(name, "a step", DefinitionError)


def test_a_long_bad_name_is_cut_in_the_message() -> None:
    """A message stays readable whatever was passed."""
    with pytest.raises(InputError) as caught:
        check_name("ü" * 100_000, "x")
    assert len(str(caught.value)) < 250


def test_keys_are_kept_verbatim() -> None:
    """A text key is its UTF-8 bytes; a bytes key is itself, NUL included."""
    assert to_stored_key("ü", "x") == "ü".encode()
    assert to_stored_key(b"\0\xff", "x") == b"\0\xff"
    assert len(to_stored_key("a" * 512, "x")) == 512


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        ("", InputError, "must not be empty"),
        (b"", InputError, "must not be empty"),
        ("a" * 513, TooLarge, "is 513 bytes, at most 512"),
        ("ü" * 257, TooLarge, "is 514 bytes"),
        (b"a" * 513, TooLarge, "is 513 bytes"),
        ("\ud800", InputError, "holds a lone surrogate"),
        (5, InputError, "must be str or bytes, got int"),
        (None, InputError, "must be str or bytes, got NoneType"),
        (bytearray(b"a"), InputError, "must be str or bytes, got bytearray"),
    ],
)
def test_bad_keys_are_refused(key: Any, error: type[Exception], words: str) -> None:
    """The limit counts bytes, not characters."""
    with pytest.raises(error, match=f"unique_key {words}"):
        to_stored_key(key, "unique_key")


@pytest.mark.parametrize(
    ("key", "words"),
    [("a\0", "NUL"), (b"a", "must be str, got bytes"), (1, "must be str, got int"), ("", "empty"), ("\ud800", "surr")],
)
def test_text_keys_are_text_without_nul(key: Any, words: str) -> None:
    """Partition and dedup keys are columns of type text."""
    assert check_text_key("tenant:1", "x") == "tenant:1"
    with pytest.raises(InputError, match=words):
        check_text_key(key, "partition_key")


@pytest.mark.parametrize("priority", [-32768, 0, 32767])
def test_priorities_fit_a_smallint(priority: int) -> None:
    """The whole range of a smallint is allowed."""
    assert check_priority(priority) == priority


@pytest.mark.parametrize("priority", [40000, 32768, -32769, True, 1.0, "1", None])
def test_other_priorities_are_refused(priority: Any) -> None:
    """Out of range or no int at all."""
    with pytest.raises(InputError, match="priority must be an int from -32768 to 32767"):
        check_priority(priority)


def test_delays_become_seconds() -> None:
    """The database adds them to its own clock."""
    assert check_delay(timedelta(minutes=1, milliseconds=5), "x") == 60.005
    assert check_delay(timedelta(0), "x") == 0
    assert check_delay(MAX_DELAY, "x") == MAX_DELAY.total_seconds()
    assert check_delay(5, "x") == 5
    assert check_delay(0.25, "x") == 0.25


@pytest.mark.parametrize(
    ("delay", "words"),
    [
        (timedelta(microseconds=-1), "must not be negative"),
        (MAX_DELAY + timedelta(microseconds=1), "must be at most 36500 days"),
        (timedelta.max, "must be at most"),
        (-1, "must not be negative, got -1"),
        (-(10**400), "must not be negative"),
        (10**400, "must be at most"),
        (float("nan"), "must be at most 36500 days, got nan"),
        (float("inf"), "must be at most"),
        (True, "must be a timedelta or a number of seconds, got True"),
        ("5s", "must be a timedelta or a number of seconds"),
        (None, "must be a timedelta"),
    ],
)
def test_bad_delays_are_refused(delay: Any, words: str) -> None:
    """Negative, endless, or neither a timedelta nor a number."""
    with pytest.raises(InputError, match=f"delay {words}"):
        check_delay(delay, "delay")
    with pytest.raises(ConfigError):
        check_delay(delay, "delay", ConfigError)


def test_aware_moments_are_taken() -> None:
    """Any time zone will do."""
    for zone in (UTC, timezone(timedelta(hours=5, minutes=30))):
        moment = datetime(2030, 1, 1, tzinfo=zone)
        assert check_moment(moment, "x") is moment


@pytest.mark.parametrize("moment", [datetime(2030, 1, 1), "2030-01-01", 5, datetime(2030, 1, 1).date()])  # noqa: DTZ001  # the refused case
def test_naive_moments_and_other_things_are_refused(moment: Any) -> None:
    """A naive datetime means a different moment to every reader."""
    with pytest.raises(InputError, match="schedule_at must be"):
        check_moment(moment, "schedule_at")


def test_a_moment_that_utc_has_no_year_for_is_refused() -> None:
    """The driver would break on it in the middle of a batch."""
    west, east = timezone(timedelta(hours=-12)), timezone(timedelta(hours=12))
    for moment in (datetime.max.replace(tzinfo=west), datetime.min.replace(tzinfo=east)):
        with pytest.raises(InputError, match="schedule_at is beyond the years 1 to 9999"):
            check_moment(moment, "schedule_at")


def test_error_text_is_made_storable() -> None:
    """NUL and lone surrogates are written out, and a long text is cut to the limit."""
    assert to_storable_error("a\0b") == "a\\0b"
    assert to_storable_error("a\ud800b") == "a\\ud800b"
    assert to_storable_error("x" * MAX_ERROR) == "x" * MAX_ERROR
    cut = to_storable_error("x" * 100_000)
    assert len(cut) == MAX_ERROR
    assert cut.endswith(" ... [cut off]")
