"""Retry policies in a worker: which exceptions are retried, how often, and what happens then."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.engine import NEVER, Engine, Opening, seconds

from gen_durable import (
    Abort,
    Await,
    Context,
    Done,
    Fail,
    Failed,
    Finished,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryPolicy,
    Signal,
    Status,
    job,
    step,
)
from gen_durable.errors import OutcomeRejected

go = Signal("go", int)
asked: list[int] = []
called: list[str] = []


def at_once(n: int) -> float:
    asked.append(n)
    return 0


QUICK = RetryPolicy(attempts=3, backoff=at_once)


@pytest.fixture(autouse=True)
def fresh() -> None:
    asked.clear()
    called.clear()


def raise_named(name: str) -> None:
    match name:
        case "connection":
            raise ConnectionError("no line")
        case "value":
            raise ValueError("wrong")
        case "abort":
            raise Abort("a second charge would be worse")
        case _:
            pass


class Plain(Machine):
    """No policy, and no `on_error`."""

    @step
    async def work(self, name: str, ctx: Context) -> Outcome[str]:
        raise_named(name)
        return Done(name)


class Named(Machine, retry=QUICK):
    """A policy for all steps, and one step with its own."""

    @step
    async def work(self, name: str, ctx: Context) -> Outcome[str]:
        raise_named(name)
        return Done(name)

    @step(retry=RetryPolicy(attempts=2, backoff=at_once, on=(ConnectionError, KeyError)))
    def own(self, name: str, ctx: Context) -> Outcome[str]:
        raise_named(name)
        return Done(name)

    @step(retry=RetryPolicy(attempts=None, backoff=at_once))
    async def patient(self, failures: int, ctx: Context) -> Outcome[int]:
        if ctx.step_errors < failures:
            raise ConnectionError("no line")
        return Done(ctx.step_errors)


class Handled(Machine):
    """An `on_error`, and policies before it."""

    @step(retry=RetryPolicy(attempts=3, backoff=at_once, on=ConnectionError))
    async def guarded(self, name: str, ctx: Context) -> Outcome[str]:
        raise_named(name)
        return Done(name)

    @step
    async def bare(self, name: str, ctx: Context) -> Outcome[str]:
        raise_named(name)
        return Done(name)

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        called.append(f"{type(error).__name__} after {ctx.step_errors}")
        return Done("handled")


class Compensated(Machine):
    """`then=`, with an `on_error` beside it."""

    @step
    async def refund(self, name: str, ctx: Context) -> Outcome[str]:
        return Done(f"refunded {name}, errors {ctx.step_errors}, attempt {ctx.attempt}")

    @step(retry=RetryPolicy(attempts=2, backoff=at_once, on=(ConnectionError, OutcomeRejected), then=refund))
    async def charge(self, name: str, ctx: Context) -> Outcome[str]:
        raise_named(name)
        return Done(name)

    @step(retry=RetryPolicy(attempts=2, backoff=at_once, then="refund"), transactional=True)
    async def charge_in_transaction(self, name: str, ctx: Context) -> Outcome[str]:
        await ctx.connection.execute("select 1")
        raise_named(name)
        return Done(name)

    async def on_error(self, state: str, ctx: Context, error: Exception) -> Outcome[str]:
        called.append(type(error).__name__)
        return Fail(f"handled {type(error).__name__}")


async def end(e: Engine, start: Any, state: Any) -> Any:
    """How an instance ends: its result, or its error as a text."""
    match await e.end(await e.app.insert(start, state)):
        case Finished(result=result):
            return result
        case Failed(error=error):
            return error
        case other:
            return other


async def test_a_machine_without_on_error_is_retried(engine: Opening) -> None:
    """It does not fail at its first `ConnectionError`: it is due again after about a second."""
    async with engine() as e, e.worker(Plain(), poll_interval=NEVER, max_poll_interval=NEVER):
        handle = await e.app.insert(Plain.work, "connection")
        row = await e.rows.until(handle, status="runnable", step_errors=1, attempt=1)
        assert row["last_error"] == "ConnectionError: no line"
        assert seconds(0.9) < row["eligible_at"] - row["updated_at"] < seconds(1.2)


async def test_a_policy_of_the_machine(engine: Opening) -> None:
    """Its attempts, its back-off with the number of earlier errors, and the message of the last failure."""
    async with engine() as e, e.worker(Named()):
        handle = await e.app.insert(Named.work, "connection")
        assert await e.end(handle) == Failed(handle.id, "ConnectionError: no line (attempt 3 of 3)")
        assert asked == [0, 1]
        row = await e.rows.row(handle)
        assert (row["seq"], row["attempt"]) == (3, 2)


async def test_a_policy_of_a_step_wins(engine: Opening) -> None:
    """`own` has two attempts, for the errors that it names; others fail at once, without a count."""
    async with engine() as e, e.worker(Named()):
        assert await end(e, Named.own, "connection") == "ConnectionError: no line (attempt 2 of 2)"
        assert asked == [0]
        assert await end(e, Named.own, "value") == "ValueError: wrong"
        assert asked == [0]
        assert await end(e, Named.own, "fine") == "fine"


async def test_a_policy_without_end(engine: Opening) -> None:
    """`attempts=None` retries more often than the default does."""
    async with engine() as e, e.worker(Named()):
        assert await end(e, Named.patient, 30) == 30
        assert asked == list(range(30))


class Counted(Machine, retry=QUICK):
    """Returns `Retry` often, and raises now and then."""

    @step
    async def work(self, name: str, ctx: Context) -> Outcome[str]:
        if ctx.attempt < 6:
            return Retry(name)
        if ctx.step_errors < 2:
            raise ConnectionError("no line")
        return Next(self.again, name)

    @step
    async def again(self, name: str, ctx: Context) -> Outcome[str]:
        if ctx.step_errors < 2:
            raise ConnectionError("no line")
        return Done(f"errors {ctx.step_errors}")


async def test_only_exceptions_of_this_visit_count(engine: Opening) -> None:
    """Six returned `Retry`s use up nothing, and the next step starts to count at 0."""
    async with engine() as e, e.worker(Counted()):
        assert await end(e, Counted.work, "x") == "errors 2"
        assert asked == [0, 1, 0, 1]


async def test_crashes_do_not_count(engine: Opening) -> None:
    async with engine() as e:
        handle = await e.app.insert(Named.work, "connection")
        for _ in range(4):
            await e.rows.fetch(
                "update @.instances set status = 'executing', locked_by = 'dead', lease_expires_at = now() - "
                "interval '1 s', claims = claims + 1 where id = $1",
                handle.id,
            )
            await e.rows.fetch("select * from @.reap(10, null)")
        async with e.worker(Named()):
            assert await e.end(handle) == Failed(handle.id, "ConnectionError: no line (attempt 3 of 3)")
        assert (await e.rows.row(handle))["attempt"] == 6


async def test_on_error_comes_after_the_policy(engine: Opening) -> None:
    """It is called when the attempts are used up, at once for other errors, and at once without a policy."""
    async with engine() as e, e.worker(Handled()):
        assert await end(e, Handled.guarded, "connection") == "handled"
        assert (asked, called) == ([0, 1], ["ConnectionError after 2"])
        assert await end(e, Handled.guarded, "value") == "handled"
        assert await end(e, Handled.bare, "connection") == "handled"
        assert called[1:] == ["ValueError after 0", "ConnectionError after 0"]
        assert asked == [0, 1]


async def test_abort_in_a_machine(engine: Opening) -> None:
    """It fails the instance at once; an `on_error` gets it as any exception, past the policy."""
    async with engine() as e, e.worker(Plain(), Named(), Handled(), Compensated()):
        for start in (Plain.work, Named.work, Named.own):
            assert await end(e, start, "abort") == "aborted: a second charge would be worse"
        for start in (Handled.guarded, Handled.bare):
            assert await end(e, start, "abort") == "handled"
        assert await end(e, Compensated.charge, "abort") == "handled Abort"
        assert (asked, called) == ([], ["Abort after 0", "Abort after 0", "Abort"])


async def test_then_follows_the_last_failure(engine: Opening) -> None:
    """It runs with the state of the failed step, in a visit of its own, and `on_error` is not called."""
    async with engine() as e, e.worker(Compensated()):
        handle = await e.app.insert(Compensated.charge, "connection")
        assert await e.end(handle) == Finished(handle.id, "refunded connection, errors 0, attempt 0")
        assert (asked, called) == ([0], [])
        history = await e.app.history(handle)
        assert [(t.step, t.outcome, t.error) for t in history] == [
            ("charge", "Retry", "ConnectionError: no line"),
            ("charge", "Next", "ConnectionError: no line"),
            ("refund", "Done", None),
        ]
        row = await e.rows.row(handle)
        assert (row["status"], row["last_error"]) == ("done", None)


async def test_then_after_a_transaction_that_was_rolled_back(engine: Opening) -> None:
    async with engine() as e, e.worker(Compensated()):
        found = await end(e, Compensated.charge_in_transaction, "connection")
        assert found == "refunded connection, errors 0, attempt 0"


async def test_then_is_for_errors_that_the_policy_names(engine: Opening) -> None:
    """Another error goes to `on_error` at once."""
    async with engine() as e, e.worker(Compensated()):
        assert await end(e, Compensated.charge, "value") == "handled ValueError"
        assert called == ["ValueError"]


async def test_an_outcome_that_the_database_refuses_is_retried(engine: Opening) -> None:
    """It is an error of the step like any other: the policy counts it, and its last one leads to `then`."""
    async with engine() as e:
        await e.rows.fetch("alter table @.instances add constraint fussy check (result is distinct from '\"bad\"')")
        async with e.worker(Compensated()):
            assert await end(e, Compensated.charge, "bad") == "refunded bad, errors 0, attempt 0"
        assert asked == [0]


class Broken(Machine, retry=RetryPolicy(backoff=lambda n: [][n])):
    """Its back-off raises."""

    @step
    async def work(self, name: str, ctx: Context) -> Outcome[str]:
        raise ValueError("first")


async def test_a_backoff_that_raises_fails_the_instance_with_both_errors(engine: Opening) -> None:
    async with engine() as e, e.worker(Broken()):
        found = await end(e, Broken.work, "x")
        assert found == "ValueError: first (and then its retry policy raised IndexError: list index out of range)"


class Waiting(Machine, retry=RetryPolicy(attempts=2, backoff=at_once, then="end")):
    """A policy and a signal that it has been given."""

    @step
    async def start(self, n: int, ctx: Context) -> Outcome[int]:
        return Await(go, then=self.hear, state=n)

    @step
    async def hear(self, n: int, ctx: Context) -> Outcome[int]:
        called.append(str(ctx.take(go)))
        raise ConnectionError("no line")

    @step
    async def end(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n)


async def test_a_retry_keeps_the_signal_of_the_step(engine: Opening) -> None:
    """Each attempt is given what woke the step."""
    async with engine() as e, e.worker(Waiting()):
        handle = await e.app.insert(Waiting.start, 1)
        await e.app.signal(handle, go, 5)
        assert await e.end(handle) == Finished(handle.id, 1)
        assert called == ["5", "5"]


@job(retry=RetryPolicy(attempts=4, backoff=at_once, on=ConnectionError))
def picky(name: str) -> None:
    raise_named(name)


async def test_the_policy_of_a_job(engine: Opening) -> None:
    async with engine() as e, e.worker(picky):
        assert await end(e, picky, "connection") == "ConnectionError: no line (attempt 4 of 4)"
        assert asked == [0, 1, 2]
        assert await end(e, picky, "value") == "ValueError: wrong"
        assert await end(e, picky, "abort") == "aborted: a second charge would be worse"
        assert await end(e, picky, "fine") is None


async def test_a_retry_by_an_operator_starts_to_count_again(engine: Opening) -> None:
    async with engine() as e, e.worker(Named()):
        handle = await e.app.insert(Named.work, "connection")
        assert isinstance(await e.end(handle), Failed)
        await e.app.retry(handle)
        await e.rows.until(handle, status=Status.FAILED.value, seq=6)
        assert asked == [0, 1, 0, 1]


class Paying(Machine):
    """Activities with policies."""

    @step(retry=RetryPolicy(attempts=1))
    async def pay(self, failures: int, ctx: Context) -> Outcome[list[str]]:
        def charge(amount: int, *, currency: str) -> str:
            called.append(currency)
            if len(called) <= failures:
                raise ConnectionError("no line")
            return f"{amount} {currency}"

        def with_own(amount: int, retry: int) -> str:
            return f"{amount}, {retry} times"

        charged = await ctx.run("charge", charge, 5, currency="EUR", retry=RetryPolicy(attempts=3, backoff=at_once))
        return Done([charged, await ctx.run("own", with_own, 5, retry=2)])

    @step(retry=RetryPolicy(attempts=1))
    def pay_in_thread(self, failures: int, ctx: Context) -> Outcome[str]:
        def charge(amount: int) -> str:
            called.append("EUR")
            if len(called) <= failures:
                raise ConnectionError("no line")
            return f"{amount} EUR"

        return Done(ctx.sync.run("charge", charge, 5, retry=RetryPolicy(attempts=3, backoff=at_once)))


async def test_an_activity_with_a_policy(engine: Opening) -> None:
    """`retry=` is an option if it is a policy, else an argument; the last error is raised in the step."""
    async with engine() as e, e.worker(Paying()):
        handle = await e.app.insert(Paying.pay, 2)
        assert await e.end(handle) == Finished(handle.id, ["5 EUR", "5, 2 times"])
        log = await e.app.activities(handle)
        assert [(a.name, a.parameters, a.ok) for a in log] == [
            ("charge", {"amount": 5, "currency": "EUR"}, False),
            ("charge", {"amount": 5, "currency": "EUR"}, False),
            ("charge", {"amount": 5, "currency": "EUR"}, True),
            ("own", {"amount": 5, "retry": 2}, True),
        ]
        called.clear()
        assert await end(e, Paying.pay, 3) == "ConnectionError: no line (attempt 1 of 1)"
        assert len(called) == 3
        called.clear()
        assert await end(e, Paying.pay_in_thread, 2) == "5 EUR"
