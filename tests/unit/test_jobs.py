"""Jobs: functions with a durable name, their options, and the pause before the next attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest

from gen_durable.backoff import backoff
from gen_durable.context import Context
from gen_durable.errors import DefinitionError, EncodeError
from gen_durable.jobs import Job, job
from gen_durable.retry_policy import Abort, RetryPolicy
from gen_durable.starts import to_step_spec


@dataclass(frozen=True)
class Mail:
    to: str


@job
async def send(mail: Mail) -> int:
    return len(mail.to)


@job(name="shout.v2", queue="loud", version=4, timeout=timedelta(seconds=5), retry=RetryPolicy(attempts=3))
def shout(text: str, ctx: Context | None) -> str:
    return text.upper()


async def test_calling_a_job_calls_its_function() -> None:
    """A unit test needs no database."""
    assert await send(Mail("ada")) == 3
    assert shout("a", cast(Any, None)) == "A"
    assert send.__wrapped__ is send.fn


def test_a_job_is_a_machine_with_one_step() -> None:
    """Its row has the job's name and the step `run`."""
    spec = to_step_spec(send, "test")
    assert (spec.label, spec.machine.version, spec.machine.queue, spec.is_async) == ("send.run", 1, "default", True)
    assert list(spec.machine.steps) == ["run"]
    assert (send.name, spec.retry) == ("send", RetryPolicy(attempts=20, backoff=backoff))
    assert not send.wants_context
    assert repr(send) == "Job('send')"


def test_options() -> None:
    """Name, version, queue, attempts and timeout are as given."""
    spec = to_step_spec(shout, "test")
    assert (spec.machine.name, spec.machine.version, spec.machine.queue) == ("shout.v2", 4, "loud")
    assert (spec.timeout, spec.is_async, shout.wants_context) == (5.0, False, True)
    assert spec.retry == RetryPolicy(attempts=3)


def test_argument_and_result_types_come_from_the_annotations() -> None:
    """The argument is decoded as what the function takes."""
    spec = to_step_spec(send, "test")
    assert spec.state_codec.decode(b'{"to": "ada"}') == Mail("ada")
    assert spec.result_codec.decode(b"3") == 3


def three(a: int, ctx: Context, b: int) -> None: ...


def two(a: int, b: int) -> None: ...


def unnamed(a: int, b) -> None: ...  # type: ignore[no-untyped-def]  # a second argument without an annotation


def odd_ctx(ctx: int) -> None: ...


def context_only(context: Context) -> None: ...


def keyword_only(*, a: int) -> None: ...


def variadic(*args: int) -> None: ...


def with_keywords(a: int, **more: int) -> None: ...


@pytest.mark.parametrize(
    "function", [two, three, keyword_only, variadic, with_keywords, unnamed, odd_ctx, context_only]
)
def test_a_job_takes_at_most_one_argument_and_ctx(function: Any) -> None:
    """Any other signature is refused when the job is made."""
    with pytest.raises(DefinitionError, match=f"job '{function.__name__}' cannot have the signature .*dataclass"):
        job(function)


def test_jobs_without_an_argument() -> None:
    """Their state is null; `ctx` alone is the context, and options of the function with a default are left alone."""

    async def tick() -> int:
        return 1

    def tick_with_context(ctx: Context) -> int:
        return ctx.id

    def tick_without_annotation(ctx):  # type: ignore[no-untyped-def]  # on purpose
        return 1

    def with_option(a: int, *, scale: int = 2) -> int:
        return a * scale

    made: list[Job[Any, Any]] = [job(tick), job(tick_with_context), job(tick_without_annotation), job(with_option)]
    assert [(one.takes_argument, one.wants_context) for one in made] == [
        (False, False),
        (False, True),
        (False, True),
        (True, False),
    ]
    spec = to_step_spec(made[0], "test")
    assert spec.state_codec.encode(None) == b"null"
    assert spec.result_codec.decode(b"1") == 1
    with pytest.raises(EncodeError, match=r"the state of tick\.run takes None, got int"):
        spec.state_codec.encode(5)


def test_a_second_argument_with_a_default_is_not_taken_for_ctx() -> None:
    """`retries=3` would be given the context; `ctx=None`, handy in unit tests, is understood."""

    def optional_ctx(a: int, ctx: Context | None = None) -> None: ...

    def retries(a: int, retries: int = 3) -> None: ...

    assert job(optional_ctx).wants_context
    with pytest.raises(DefinitionError, match="job 'retries' cannot have the signature"):
        job(retries)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "a job's name must be"),
        ({"name": "a b"}, "a job's name must be"),
        ({"queue": "a b"}, "the queue of job 'one' must be"),
        ({"version": 0}, "the version of job 'one' must be"),
        ({"version": True}, "the version of job 'one' must be"),
        ({"version": 2**31}, "the version of job 'one' must be"),
        ({"retry": 3}, "the retry of job 'one' must be a RetryPolicy, got int"),
        ({"retry": None}, r"must be a RetryPolicy, got None: write RetryPolicy\(attempts=1\)"),
        ({"retry": RetryPolicy(then="two")}, "the retry of job 'one' has then=, but a job has only one step"),
        ({"max_attempts": 3}, r"@job has no option 'max_attempts': write retry=RetryPolicy\(attempts=\.\.\.\)"),
        ({"backoff": backoff}, r"@job has no option 'backoff': write retry=RetryPolicy\(backoff=\.\.\.\)"),
        ({"timeout": "5"}, "the timeout of job 'one' must be a timedelta"),
        ({"timeout": timedelta(seconds=-1)}, "the timeout of job 'one' must not be negative"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    """A mistake in `@job(...)` is an error of the definition."""

    def one(a: int) -> None: ...

    with pytest.raises(DefinitionError, match=words):
        job(**options)(one)


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        cast(Any, job)(colour="red")


def test_job_goes_on_functions_only() -> None:
    """A class or an object with __call__ is refused."""
    for wrong in (Mail, "send", send):
        with pytest.raises(DefinitionError, match="@job decorates a function"):
            job(cast(Any, wrong))


def test_backoff_doubles_up_to_its_cap() -> None:
    """Without jitter the pauses are 1, 2, 4 ... seconds, and never above the cap."""
    pauses = [backoff(attempt, jitter=0).total_seconds() for attempt in range(14)]
    assert pauses[:5] == [1, 2, 4, 8, 16]
    assert pauses[-2:] == [900, 900]
    assert backoff(0, base=timedelta(seconds=5), jitter=0) == timedelta(seconds=5)
    assert backoff(9, cap=timedelta(seconds=7), jitter=0) == timedelta(seconds=7)


@pytest.mark.parametrize("attempt", [-5, 0, 3, 60, 2_147_483_647])
def test_backoff_stays_within_its_bounds(attempt: int) -> None:
    """Jitter adds at most a tenth, and no attempt number overflows."""
    least = backoff(attempt, jitter=0)
    for _ in range(100):
        assert least <= backoff(attempt) <= least * 1.1
    assert least <= timedelta(minutes=15)


def test_cancel_carries_its_reason() -> None:
    """`raise Abort("why")` fails a job at once, with those words."""
    error = Abort("no such customer")
    assert error.reason == str(error) == "no such customer"
