"""A codec binds a state to the machine, version and step that it is for: a writer of the tables cannot move it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.security.test_codec import aes
from tests.support.canaries import Secret
from tests.support.engine import Opening, seconds

from gen_durable import (
    Await,
    Context,
    Done,
    Finished,
    Handle,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryPolicy,
    ScheduleChildren,
    Signal,
    Start,
    job,
    step,
)
from gen_durable.errors import DecodeError
from gen_durable.telemetry import StateUndecodable

go = Signal("go", None)


class Refund(Machine, history="states"):
    """Two steps with the same type of state; the second is reached only after a check."""

    @step
    async def check(self, secret: Secret, ctx: Context) -> Outcome[str]:
        return Await(go, state=secret, then=self.pay)

    @step
    async def pay(self, secret: Secret, ctx: Context) -> Outcome[str]:
        return Done(f"paid {secret.text}")


class NewRefund(Machine, name="Refund", version=2):
    """The next version, without the check."""

    @step
    async def check(self, secret: Secret, ctx: Context) -> Outcome[str]:
        return Done(f"paid {secret.text} unchecked")


class Gift(Machine):
    """Another machine with the same name of a step."""

    @step
    async def check(self, secret: Secret, ctx: Context) -> Outcome[str]:
        return Done(f"gave {secret.text} away")


MOVES = {
    "to another step": "update @.instances set step = 'pay' where id = $1",
    "to another version": "update @.instances set fsm_version = 2 where id = $1",
    "to another machine": "update @.instances set fsm = 'Gift' where id = $1",
}


@pytest.mark.parametrize("move", MOVES)
async def test_a_row_that_was_moved_does_not_run(engine: Opening, move: str) -> None:
    """The step is not called, and the row is put back; moved home again it runs."""
    async with engine(codec=aes()) as e:
        handle = await e.app.insert(Refund.check, Secret("100"))
        await e.rows.fetch(MOVES[move], handle.id)
        async with e.worker(Refund(), NewRefund(), Gift()):
            (event, *_) = await e.seen.until(StateUndecodable)
            assert event.id == handle.id
            assert "it was changed or copied from another instance, field or step" in event.error
        row = await e.rows.row(handle)
        assert (row["status"], row["result"], row["postponements"]) == ("runnable", None, 1)
        with pytest.raises(DecodeError, match="its state cannot be decoded"):
            _ = (await e.app.get(handle.id)).state
        home = "set step = 'check', fsm = 'Refund', fsm_version = 1, eligible_at = now() where id = $1"
        await e.rows.fetch(f"update @.instances {home}", handle.id)
        async with e.worker(Refund(), NewRefund(), Gift()):
            await e.rows.until(handle, status="awaiting_signal")
            await e.app.signal(handle.id, go)
            assert await e.end(handle) == Finished(handle.id, "paid 100")


async def test_the_state_of_an_earlier_step_does_not_come_back(engine: Opening) -> None:
    """The history has the states of all steps, each for its own step."""
    async with engine(codec=aes()) as e:
        handle = await e.app.insert(Longer.first, 1)
        async with e.worker(Longer()):
            await e.rows.until(handle, status="awaiting_signal")
        await e.rows.fetch(
            "update @.instances i set state = t.state from @.transitions t where t.instance_id = i.id and t.seq = 1"
        )
        await e.app.signal(handle.id, go)
        async with e.worker(Longer()):
            await e.seen.until(StateUndecodable)
        assert (await e.rows.row(handle))["status"] == "runnable"
        await e.rows.fetch("delete from @.instances")


class Longer(Machine, history="states"):
    """Every way to write a state."""

    @step
    async def first(self, n: int, ctx: Context) -> Outcome[int]:
        return Next(self.second, n + 1)

    @step
    async def second(self, n: int, ctx: Context) -> Outcome[int]:
        if n < 4:
            return Retry(n + 1)
        return Await(go, state=n + 1, then=self.third)

    @step
    async def third(self, n: int, ctx: Context) -> Outcome[int]:
        if n == 5:
            return Await(go, state=n + 1, timeout=seconds(0.01))
        return ScheduleChildren([Start(leaf, n)], then=self.fourth, state=n + 1)

    @step(retry=RetryPolicy(attempts=1, then="fifth"))
    async def fourth(self, n: int, ctx: Context) -> Outcome[int]:
        (child,) = ctx.children
        assert (child.state, child.result) == (n - 1, n - 1)
        raise ValueError("on to the next")

    @step
    async def fifth(self, n: int, ctx: Context) -> Outcome[int]:
        return Done(n, spawn=[Start(leaf, n)])


@job
async def leaf(n: int) -> int:
    return n


async def test_every_written_state_is_read_again(engine: Opening) -> None:
    """By the step that it is for, by `get`, `list` and `history`; also of an instance that has ended."""
    async with engine(codec=aes()) as e, e.worker(Longer(), leaf):
        handle = await e.app.insert(Longer.first, 1)
        await e.rows.until(handle, status="awaiting_signal")
        assert (await e.app.get(handle.id)).state == 5
        await e.app.signal(handle.id, go)
        assert await e.end(handle) == Finished(handle.id, 7)
        history = await e.app.history(handle.id)
        assert [t.state for t in history] == [2, 3, 4, 5, 6, 7, 7, 7]
        assert {i.state async for i in e.app.list_all(payloads=True)} == {6, 7}


async def test_a_debounced_start_at_another_step_and_version(engine: Opening) -> None:
    """The holder of the key takes over the step of the last call, and its state is for that."""
    async with engine(codec=aes()) as e:
        for started, text in ((Refund.check, "1"), (Refund.pay, "2"), (NewRefund.check, "3")):
            handle: Handle[Any] = await e.app.debounce(started, Secret(text), unique_key="k", delay=seconds(0.2))
            assert (await e.app.get(handle.id)).state == {"text": text, "count": 0}
        async with e.worker(Refund(), NewRefund()):
            assert await e.end(handle) == Finished(handle.id, "paid 3 unchecked")
