"""Results are checked against the declared type before they are committed: a mismatch is an error of the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.support.engine import Opening

from gen_durable import Context, Done, Fail, Failed, Finished, Machine, Outcome, RetryPolicy, job, step


@dataclass(frozen=True)
class Receipt:
    number: int


wrong: Any = "text"


class Wrong(Machine, retry=RetryPolicy(attempts=2, backoff=lambda _: 0)):
    """Each step returns something else than it declares."""

    @step
    async def number(self, state: str, ctx: Context) -> Outcome[int]:
        return Done(wrong)

    @step
    def in_thread(self, state: str, ctx: Context) -> Outcome[int]:
        return Done(wrong)

    @step
    async def flag(self, state: str, ctx: Context) -> Outcome[int]:
        return Done(True)  # an int for Python, but not in JSON

    @step
    async def numbers(self, state: str, ctx: Context) -> Outcome[list[int]]:
        return Done(["1"])  # type: ignore[list-item]

    @step
    async def receipt(self, state: str, ctx: Context) -> Outcome[Receipt]:
        return Done(Receipt(wrong))

    @step
    async def missing(self, state: str, ctx: Context) -> Outcome[Receipt]:
        return Done()  # type: ignore[return-value]

    @step
    async def nothing(self, state: str, ctx: Context) -> Outcome[None]:
        return Done(wrong)

    @step(transactional=True)
    async def in_transaction(self, state: str, ctx: Context) -> Outcome[int]:
        return Done(wrong)


class Right(Machine):
    @step
    async def perhaps(self, state: str, ctx: Context) -> Outcome[int | None]:
        return Done(5 if state else None)

    @step
    async def anything(self, state: str, ctx: Context) -> Outcome[Any]:
        return Done({"any": [1, state]})

    @step
    async def whole(self, state: str, ctx: Context) -> Outcome[float]:
        return Done(5)

    @step
    async def either(self, state: str, ctx: Context) -> Done[int] | Done[str] | Fail:
        return Done(5) if state else Done("none")

    @step
    async def nothing(self, state: str, ctx: Context) -> Outcome[None]:
        return Done()


class Handled(Machine):
    @step
    async def number(self, state: str, ctx: Context) -> Outcome[int]:
        return Done(wrong)

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[int]:
        if state == "again":
            return Done(wrong)
        assert str(error) == "the result of Handled.number takes int, got str"
        return Done(-1)


@job(retry=RetryPolicy(attempts=2, backoff=lambda _: 0))
async def wrong_job(state: str) -> int:
    return wrong  # type: ignore[no-any-return]


@job(retry=RetryPolicy(attempts=1))
def returns_unasked() -> None:
    return wrong  # type: ignore[no-any-return]


@job
def unannotated(state: str):  # type: ignore[no-untyped-def]
    return {"any": state}


STARTS = [Wrong.number, Wrong.in_thread, Wrong.flag, Wrong.numbers, Wrong.receipt, Wrong.missing, Wrong.nothing,
          Wrong.in_transaction, wrong_job]  # fmt: skip


async def test_a_wrong_result_is_an_error_of_the_step(engine: Opening) -> None:
    """It is not committed: the retry policy answers it, and the instance fails in the end."""
    async with engine() as e, e.worker(Wrong(), wrong_job, returns_unasked):
        handles = [await e.app.insert(start, "x") for start in STARTS]
        for handle in handles:
            ended = await e.end(handle)
            assert isinstance(ended, Failed), ended
            assert "EncodeError: the result of" in ended.error
            assert ended.error.endswith("(attempt 2 of 2)")
        last = await e.app.insert(returns_unasked)
        assert await e.end(last) == Failed(
            last.id, "EncodeError: the result of returns_unasked.run takes None, got str (attempt 1 of 1)"
        )


async def test_a_wrong_result_reaches_on_error(engine: Opening) -> None:
    """The answer of `on_error` is checked as well."""
    async with engine() as e, e.worker(Handled()):
        handle = await e.app.insert(Handled.number, "once")
        assert await e.end(handle) == Finished(handle.id, -1)
        twice = await e.app.insert(Handled.number, "again")
        ended = await e.end(twice)
        assert isinstance(ended, Failed)
        assert "and then on_error raised EncodeError: the result of Handled.number takes int, got str" in ended.error


@pytest.mark.parametrize(
    ("start", "state", "result"),
    [
        (Right.perhaps, "", None),
        (Right.perhaps, "x", 5),
        (Right.anything, "x", {"any": [1, "x"]}),
        (Right.whole, "x", 5.0),
        (Right.either, "x", 5),
        (Right.either, "", "none"),
        (Right.nothing, "", None),
        (unannotated, "x", {"any": "x"}),
    ],
)
async def test_a_right_result_passes(engine: Opening, start: Any, state: str, result: Any) -> None:
    async with engine() as e, e.worker(Right(), unannotated):
        handle = await e.app.insert(start, state)
        assert await e.end(handle) == Finished(handle.id, result)
