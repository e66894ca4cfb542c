"""Exceptions as they are stored: class, message, and frames of the user's code without values; all bounded."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from gen_durable.outcomes import Fail
from gen_durable.stored_exceptions import MAX_TRACEBACK, describe_error, error_type_of, format_traceback


class Refused(Exception):
    """An error of the user."""


def raised(function: Callable[[], object]) -> BaseException:
    """What a function raises, with its traceback from the function on."""
    try:
        function()
    except BaseException as error:
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    raise AssertionError


def charge(secret: str) -> None:
    raise Refused(f"no luck with {secret}")


def pay() -> None:
    card = "4111-1111"
    charge(card)


def test_frames_are_those_of_python_without_messages_and_values() -> None:
    """File, line, function and source; the class instead of the last line, whose message is in last_error."""
    text = format_traceback(raised(pay)) or ""
    assert text.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{__file__}", line {pay.__code__.co_firstlineno + 2}, in pay',
        "    charge(card)",
        f'  File "{__file__}", line {charge.__code__.co_firstlineno + 1}, in charge',
        '    raise Refused(f"no luck with {secret}")',
        "tests.unit.test_stored_exceptions.Refused",
    ]


def test_causes_come_first() -> None:
    def wrap() -> None:
        try:
            pay()
        except Refused as error:
            raise RuntimeError("wrapped") from error

    def handle() -> None:
        try:
            wrap()
        except RuntimeError:
            raise ValueError("while handling")  # noqa: B904

    text = format_traceback(raised(handle)) or ""
    places = [
        text.index(words)
        for words in (
            "tests.unit.test_stored_exceptions.Refused\n",
            "direct cause of the following",
            "RuntimeError\n",
            "During handling of the above",
            "\nValueError",
        )
    ]
    assert places == sorted(places)
    assert "4111" not in text
    assert "wrapped" not in text.replace('raise RuntimeError("wrapped")', "")


def test_a_cause_that_is_suppressed_is_left_out() -> None:
    def suppress() -> None:
        try:
            pay()
        except Refused:
            raise ValueError("x") from None

    text = format_traceback(raised(suppress)) or ""
    assert "in charge" not in text
    assert text.endswith("\nValueError")


def test_a_chain_without_end_is_cut() -> None:
    first, second = raised(pay), raised(pay)
    first.__cause__, second.__cause__ = second, first
    assert (format_traceback(first) or "").count("in charge") == 2

    newest = raised(pay)
    for _ in range(50):
        older, newest = newest, raised(pay)
        newest.__cause__ = older
    text = format_traceback(newest) or ""
    assert text.count("in charge") == 5
    assert text.startswith("... (cut off here)\n")


def test_what_was_being_handled_is_named_once() -> None:
    """`on_error` raises on its own, or from the error that it was given."""
    error, second = raised(pay), raised(lambda: int("x"))
    text = format_traceback(second, during=error) or ""
    assert text.count("in charge") == 1
    assert "During handling" in text
    second.__cause__ = error
    text = format_traceback(second, during=error) or ""
    assert text.count("in charge") == 1
    assert "direct cause" in text


def test_of_a_deep_recursion_the_first_and_the_last_frames_are_kept() -> None:
    def dive(depth: int) -> int:
        return dive(depth - 1) if depth else 1 // 0

    def start() -> int:
        return dive(200)

    text = format_traceback(raised(start)) or ""
    assert text.count("File ") == 30
    assert "in test_of_a_deep_recursion_the_first_and_the_last_frames_are_kept.<locals>.start" in text
    assert "  ... 172 frames are left out\n" in text
    assert text.endswith("\nZeroDivisionError")


def test_the_parts_of_a_group_have_their_frames() -> None:
    async def crowd() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_late())
            group.create_task(fail_late())

    async def fail_late() -> None:
        await asyncio.sleep(0)
        pay()

    error = raised(lambda: asyncio.run(crowd()))
    text = format_traceback(error) or ""
    assert "ExceptionGroup\n  part 1 of 2:\n    Traceback (most recent call last):\n" in text
    assert "  part 2 of 2:\n" in text
    assert text.count("in charge") == 2


def nested(depth: int, width: int) -> ExceptionGroup[Exception]:
    parts = [raised(pay) for _ in range(width)] if depth == 0 else [nested(depth - 1, width) for _ in range(width)]
    return ExceptionGroup("g" * 300, parts)  # type: ignore[type-var]


@pytest.mark.parametrize(("depth", "width"), [(0, 200), (3, 6), (60, 1)])
def test_large_groups_are_bounded(depth: int, width: int) -> None:
    error = nested(depth, width)
    text = format_traceback(error)
    assert text is None or len(text.encode()) <= MAX_TRACEBACK
    assert len(describe_error(error)) <= 8000
    assert describe_error(error).startswith(f"ExceptionGroup: {width} error")


def compiled(filename: str, name: str, source: str) -> Callable[[], object]:
    space: dict[str, Any] = {"__name__": "user"}
    exec(compile(source, filename, "exec"), space)
    made: Callable[[], object] = space[name]
    return made


def test_the_text_is_bounded_in_bytes() -> None:
    """Long paths and names of any script: the newest frames are kept."""
    names = [f"ü{n}" + "ü" * 180 for n in range(40)]
    source = "\n".join(
        [f"def {name}():\n    {after}()" for name, after in pairwise(names)] + [f"def {names[-1]}():\n    1 // 0"]
    )
    error = raised(compiled("/" + "日" * 300, names[0], source))
    text = format_traceback(error) or ""
    assert MAX_TRACEBACK - 800 < len(text.encode()) <= MAX_TRACEBACK
    assert text.startswith("... (cut off here)\n")
    assert text.endswith("\nZeroDivisionError")


def test_nul_and_surrogates_are_escaped() -> None:
    function: Any = compiled("x", "f", "def f():\n    1 // 0")
    error = raised(types.FunctionType(function.__code__.replace(co_filename="x\udc80y\0z"), {}))
    text = format_traceback(error) or ""
    assert "x\\udc80y\\0z" in text
    text.encode()


def test_an_error_without_frames_of_the_user_has_no_traceback() -> None:
    """One that was never raised, and one that the engine raised itself."""
    assert format_traceback(ValueError("x")) is None
    space: dict[str, Any] = {"__name__": "gen_durable.engine.executor"}
    exec("def f():\n    1 // 0", space)
    assert format_traceback(raised(space["f"])) is None


def test_frames_of_the_engine_before_the_users_are_left_out() -> None:
    space: dict[str, Any] = {"__name__": "gen_durable.engine.executor", "pay": pay}
    exec("def f():\n    pay()", space)
    text = format_traceback(raised(space["f"])) or ""
    assert text.count("File ") == 2
    assert "in f\n" not in text


class Hostile(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise SystemExit(3)


def test_a_class_that_raises_in_its_attributes() -> None:
    error = Hostile("x", [ValueError()])
    assert format_traceback(error) == "(its traceback cannot be formatted)"
    assert describe_error(error) == "Hostile: (its str() raised)"


def test_an_exception_is_described_whatever_it_is() -> None:
    """NUL and surrogates do not get into the row, and an exception that cannot be printed is still named."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert describe_error(Mute()) == "Mute: (its str() raised)"
    assert describe_error(ValueError("a\0\ud800")) == "ValueError: a\\0\\ud800"
    assert len(describe_error(ValueError("x" * 100_000))) == 8000


def test_the_type_of_an_error() -> None:
    """With its module, unless it is builtin; of any length and script it can be stored."""
    assert error_type_of(Refused()) == "tests.unit.test_stored_exceptions.Refused"
    assert error_type_of(ConnectionError()) == "ConnectionError"
    assert error_type_of(asyncio.CancelledError()) == "asyncio.exceptions.CancelledError"
    odd = type("x" * 500, (Exception,), {"__module__": "a\0b\udc80"})
    assert error_type_of(odd()).startswith("a\\0b\\udc80.xxx")
    assert len(error_type_of(odd())) == 200
    assert error_type_of(type("X", (Exception,), {"__module__": None})()) == "None.X"


def test_a_group_is_described_by_its_parts() -> None:
    """In the order of the parts, up to five; a part of a part too."""
    group = ExceptionGroup("both", [ConnectionError("no route"), ValueError("bad")])
    assert describe_error(group) == "ExceptionGroup: 2 errors (both): ConnectionError: no route, ValueError: bad"
    outer = ExceptionGroup("all", [group, *(KeyError(n) for n in range(9))])
    assert describe_error(outer) == (
        "ExceptionGroup: 10 errors (all): ExceptionGroup: 2 errors (both): ConnectionError: no route, ValueError: bad, "
        "KeyError: 0, KeyError: 1, KeyError: 2, KeyError: 3, and 5 more"
    )
    assert len(describe_error(ExceptionGroup("x", [ValueError("y" * 9000)]))) < 600


def test_fail_keeps_the_exception_it_was_given() -> None:
    error = ValueError("x")
    assert (Fail(error).reason, Fail(error).error) == ("ValueError: x", error)
    assert Fail("x").error is None
