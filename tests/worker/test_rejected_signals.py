"""Payloads that do not fit their signal's type, sent by SQL or an older client, do not fail the instance."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.support.engine import NEVER, Engine, Opening, seconds, soon

from gen_durable import Await, Context, Done, Fail, Finished, Machine, Next, Outcome, Retry, Signal, step
from gen_durable.contrib.aes import AesGcm
from gen_durable.engine import reaper
from gen_durable.errors import EncodeError, UnreadableSignal
from gen_durable.telemetry import SignalRejected

OLD_KEY, NEW_KEY = b"o" * 32, b"n" * 32


@dataclass
class Paid:
    """What the machines below take."""

    amount: int


@dataclass
class Refunded:
    """Another shape under the same name."""

    refund: str


paid = Signal("paid", Paid)
refunded = Signal("paid", Refunded)
stop = Signal("stop", str)


class Order(Machine):
    """Waits for a payment, in steps of every kind."""

    @step
    async def start(self, kind: str, ctx: Context) -> Outcome[int]:
        steps = {
            "async": self.pay,
            "def": self.pay_in_thread,
            "transactional": self.pay_in_transaction,
            "all": self.all_,
        }
        return Await({paid, stop}, then=steps[kind], state=0, timeout=3600)

    @step
    async def pay(self, _: int, ctx: Context) -> Outcome[int]:
        found = ctx.take(paid)
        return Done(-1 if found is None else found.amount)

    @step
    def pay_in_thread(self, _: int, ctx: Context) -> Outcome[int]:
        found = ctx.take(paid)
        return Done(-1 if found is None else found.amount)

    @step(transactional=True)
    async def pay_in_transaction(self, _: int, ctx: Context) -> Outcome[int]:
        await ctx.connection.execute(f'insert into "{ctx.unique_key.decode()}".book values (1)')  # type: ignore[union-attr]
        found = ctx.take(paid)
        return Done(-1 if found is None else found.amount)

    @step
    async def all_(self, _: int, ctx: Context) -> Outcome[int]:
        return Done(sum(found.amount for found in ctx.take_all(paid)))

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[int]:
        return Fail("on_error was called")


async def send_by_sql(e: Engine, target: int, payload: str, name: str = "paid") -> None:
    assert await e.rows.value("select @.signal($1::bigint, $2, $3::jsonb)", target, name, payload) == "delivered"


@pytest.mark.parametrize("kind", ["async", "def", "transactional", "all"])
async def test_a_bad_payload_is_set_aside_and_the_next_one_taken(
    engine: Opening, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine() as e, e.worker(Order()):
        await e.rows.fetch("create table @.book (n int)")
        handle = await e.app.insert(Order.start, kind, unique_key=e.rows.schema)
        await e.rows.until(handle, status="awaiting_signal")
        with caplog.at_level(logging.INFO):
            await send_by_sql(e, handle.id, '{"amount": "secret words"}')
            (event,) = await e.seen.until(SignalRejected)
        row = await e.rows.until(handle, status="awaiting_signal")
        assert (row["attempt"], row["crashes"], row["step_errors"], row["seq"], row["last_error"]) == (0, 0, 0, 1, None)
        assert (event.id, event.machine, event.signal) == (handle.id, "Order", "paid")
        assert "amount" in event.reason
        assert "secret" not in event.reason + caplog.text
        (rejected,) = await e.app.signals(handle)
        assert (rejected.state, rejected.reason) == ("rejected", event.reason)
        assert await e.rows.value("select count(*) from @.book") == 0
        await handle.signal(paid, Paid(7))
        assert await soon(handle.wait()) == Finished(handle.id, 7)
        assert [s.state for s in await e.app.signals(handle)] == ["rejected"]
        assert await e.rows.value("select count(*) from @.book") == (kind == "transactional")


async def test_a_good_payload_behind_a_bad_one_is_taken_at_once(engine: Opening) -> None:
    async with engine() as e:
        handle = await e.app.insert(Order.start, "all")
        for payload in ('{"amount": 1}', "null", '{"amount": 2}', '"x"'):
            await send_by_sql(e, handle.id, payload)
        async with e.worker(Order()):
            assert await soon(handle.wait()) == Finished(handle.id, 3)
        assert len(await e.app.rejected_signals()) == 2


async def test_the_timeout_still_comes(engine: Opening) -> None:
    async with engine() as e, e.worker(Order()):
        handle = await e.app.insert(Order.start, "async")
        await e.rows.until(handle, status="awaiting_signal")
        await send_by_sql(e, handle.id, "[]")
        await e.seen.until(SignalRejected)
        await e.rows.until(handle, status="awaiting_signal")
        await e.rows.fetch("update @.instances set await_deadline = now()")
        assert await soon(handle.wait()) == Finished(handle.id, -1)


async def test_the_client_checks_before_it_sends(engine: Opening) -> None:
    """A dataclass of the right class with a value of the wrong type would be rejected by every worker."""
    async with engine() as e:
        handle = await e.app.insert(Order.start, "async", queue="nobody")
        with pytest.raises(EncodeError, match="amount"):
            await handle.signal(paid, Paid("many"))  # type: ignore[arg-type]
        assert await e.app.signals(handle) == []
        await e.app.cancel(handle)


class Catching(Machine):
    """Catches the error; on_error of the other step takes."""

    @step
    async def start(self, catches: bool, ctx: Context) -> Outcome[str]:
        return Await(paid, then=self.catch if catches else self.fail, state=0)

    @step
    async def catch(self, _: int, ctx: Context) -> Outcome[str]:
        try:
            ctx.take(paid)
        except UnreadableSignal as error:
            return Done(error.faults[0].name)
        return Done("taken")

    @step
    async def fail(self, _: int, ctx: Context) -> Outcome[str]:
        raise RuntimeError

    async def on_error(self, state: Any, ctx: Context, error: Exception) -> Outcome[str]:
        found = ctx.take(paid)
        return Done(f"{type(error).__name__} {found and found.amount}")


async def test_a_step_that_catches_the_error_does_not_take_the_signal(engine: Opening) -> None:
    async with engine() as e, e.worker(Catching()):
        handle = await e.app.insert(Catching.start, True)
        await send_by_sql(e, handle.id, "[]")
        assert await soon(handle.wait()) == Finished(handle.id, "paid")
        assert [s.state for s in await e.app.signals(handle)] == ["never_read"]


async def test_on_error_that_takes_a_bad_payload_does_not_fail_the_instance(engine: Opening) -> None:
    async with engine() as e, e.worker(Catching()):
        handle = await e.app.insert(Catching.start, False)
        await send_by_sql(e, handle.id, "[]")
        await e.seen.until(SignalRejected)
        await e.rows.until(handle, status="awaiting_signal")
        await handle.signal(paid, Paid(3))
        assert await soon(handle.wait()) == Finished(handle.id, "RuntimeError 3")


class OldShop(Machine, name="Shop"):
    """The old definition: it cannot read a refund."""

    def __init__(self) -> None:
        self.runs = 0

    @step
    async def start(self, _: int, ctx: Context) -> Outcome[str]:
        return Await(paid, then=self.take, state=0)

    @step
    async def take(self, _: int, ctx: Context) -> Outcome[str]:
        self.runs += 1
        return Done(f"old {ctx.take(paid)}")


class NewShop(Machine, name="Shop"):
    """The new one can."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    @step
    async def start(self, _: int, ctx: Context) -> Outcome[str]:
        return Await(refunded, then=self.take, state=0)

    @step
    async def take(self, _: int, ctx: Context) -> Outcome[str]:
        found = ctx.take(refunded)
        assert found is not None
        self.taken.append(found.refund)
        return Next(self.end, found.refund)

    @step
    async def end(self, refund: str, ctx: Context) -> Outcome[str]:
        return Done(refund)


async def test_old_and_new_workers_on_one_queue(
    engine: Opening, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new definition gets each refund once, whichever worker is woken first; the old one does not spin."""
    monkeypatch.setattr(reaper, "REJECTED_EVERY", 0.2)
    rounds: dict[str, Any] = {"reap_interval": seconds(0.1), "poll_interval": seconds(0.1)}
    old, new = OldShop(), NewShop()
    count = 20
    async with engine() as e:
        handles = [await e.app.insert(OldShop.start, 0) for _ in range(count)]
        async with e.worker(old, **rounds):
            for n, handle in enumerate(handles):
                await handle.signal(refunded, Refunded(str(n)))
            await e.seen.until(SignalRejected, count=count)
            runs = old.runs
            await asyncio.sleep(1)  # the old worker alone does not try again: there is nothing to wait on
            assert old.runs == runs == count
            async with e.worker(new, **rounds):
                results = [await soon(handle.result()) for handle in handles]
        assert results == [str(n) for n in range(count)]
        assert sorted(new.taken, key=int) == [str(n) for n in range(count)]
        assert await e.rows.value("select count(*) from @.signals") == 0


async def test_a_new_worker_tries_again_when_it_starts(engine: Opening) -> None:
    async with engine() as e:
        handle = await e.app.insert(OldShop.start, 0)
        async with e.worker(OldShop()):
            await handle.signal(refunded, Refunded("r"))
            await e.seen.until(SignalRejected)
        async with e.worker(NewShop(), reap_interval=NEVER):
            assert await soon(handle.wait()) == Finished(handle.id, "r")


async def test_an_operator_restores_and_a_worker_is_woken(engine: Opening) -> None:
    lazy = timedelta(hours=1)
    async with engine() as e, e.worker(Order(), poll_interval=lazy, max_poll_interval=lazy):
        handle = await e.app.insert(Order.start, "async")
        await e.rows.until(handle, status="awaiting_signal")
        await send_by_sql(e, handle.id, "[]")
        await e.seen.until(SignalRejected)
        (rejected,) = await e.app.rejected_signals()
        await e.rows.fetch("""update @.signals set payload = '{"amount": 9}'""")  # as an operator may repair it
        assert await e.app.restore_signals([rejected.id, 999]) == {rejected.id: "restored", 999: "unknown"}
        assert await soon(handle.wait()) == Finished(handle.id, 9)


@pytest.mark.parametrize("awaited", [True, False])
async def test_a_signal_in_clear_or_moved_is_set_aside(engine: Opening, awaited: bool) -> None:
    """An encrypted instance goes on with its other signals, and so does one that awaits none."""
    async with engine(codec=AesGcm({"k": OLD_KEY})) as e:
        other = await e.app.insert(Order.start, "async", queue="nobody")
        await other.signal(paid, Paid(1))
        handle = await e.app.insert(Order.start, "async")
        if awaited:
            await send_by_sql(e, handle.id, '{"amount": 6}')
            await e.rows.fetch("update @.signals set target_id = $1, size = 0", handle.id)  # moved, and in clear
        else:
            await send_by_sql(e, handle.id, '{"amount": 6}', "unknown")
            await e.rows.fetch("delete from @.signals where target_id = $1", other.id)
        await e.rows.fetch("update @.instances set has_signals = true")
        async with e.worker(Order()):
            events = await e.seen.until(SignalRejected, count=2 if awaited else 1)
            assert all(event.reason.startswith("cannot be decrypted") for event in events)
            await handle.signal(paid, Paid(8))
            assert await soon(handle.wait()) == Finished(handle.id, 8)
        await e.app.cancel(other)


async def test_a_worker_with_the_right_key_tries_again(dsn: str, schema: str, engine: Opening) -> None:
    """Both keys have one name: the fingerprint tells them apart."""
    async with engine(codec=AesGcm({"k": OLD_KEY}), read_unencrypted=True) as e:
        handle = await e.app.insert(Order.start, "async")
        async with e.worker(Order()):
            await e.rows.until(handle, status="awaiting_signal")
            await e.rows.fetch("update @.instances set state = '0'")
            async with engine(codec=AesGcm({"k": NEW_KEY})) as sender:
                await sender.app.signal(handle.id, paid, Paid(4))
            await e.seen.until(SignalRejected)
    async with engine(codec=AesGcm({"k": NEW_KEY}), read_unencrypted=True) as e, e.worker(Order(), reap_interval=NEVER):
        assert await soon(e.app.handle(handle.id, Order.start).wait()) == Finished(handle.id, 4)


async def test_a_signal_that_cannot_be_decrypted_does_not_keep_on_cancel_from_running(engine: Opening) -> None:
    ran = asyncio.Event()
    began = asyncio.Event()

    class Slow(Machine):
        @step
        async def start(self, _: int, ctx: Context) -> Outcome[None]:
            began.set()
            await asyncio.sleep(3600)
            return Retry(0)

        async def on_cancel(self, state: Any, ctx: Context, reason: str) -> None:
            ran.set()

    async with engine(codec=AesGcm({"k": OLD_KEY})) as e, e.worker(Slow()):
        handle = await e.app.insert(Slow.start, 0)
        await soon(began.wait())
        await send_by_sql(e, handle.id, "1", "any")
        await e.app.cancel(handle)
        await soon(ran.wait())
