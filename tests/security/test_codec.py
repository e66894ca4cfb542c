"""A codec: no payload is stored in clear, none is read in another place than its own, and keys change under load."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.support.canaries import (
    CANARY,
    Crowd,
    Patient,
    Secret,
    Vault,
    Waiter,
    burn,
    dump,
    echo,
    leaf,
    told,
)
from tests.support.engine import BRIEF, Engine, Opening, seconds, soon

from gen_durable import (
    Cancelled,
    Context,
    Done,
    Durable,
    Failed,
    Finished,
    Handle,
    Instance,
    Machine,
    Next,
    Outcome,
    RetryPolicy,
    Signal,
    Start,
    SyncDurable,
    job,
    step,
)
from gen_durable.contrib.aes import AesGcm
from gen_durable.core.services import services_of
from gen_durable.encryption import PayloadContext
from gen_durable.errors import ConfigError, DecodeError, EncodeError, NoTarget
from gen_durable.telemetry import SignalRejected, StateUndecodable

KEY = secrets.token_bytes(32)


def aes(*names: str, write: str | None = None, key: bytes = KEY) -> AesGcm:
    """A codec with some keys, all different, the same in every call."""
    keys = {name: bytes(a ^ b for a, b in zip(key, name.encode().ljust(32), strict=True)) for name in names or ("k1",)}
    return AesGcm(keys, write=write)


async def whole_life(e: Engine) -> int:
    """A machine that stores secrets everywhere, to its end."""
    handle = await e.app.insert(Vault.start, Secret(CANARY), unique_key="vault")
    await e.rows.until(handle, status="awaiting_signal")
    await e.app.signal("vault", told, Secret(CANARY, 7), dedup_key="once")
    assert await e.end(handle) == Finished(handle.id, Secret(CANARY, 99))
    return handle.id


async def test_a_whole_life_leaves_no_payload_in_clear(engine: Opening) -> None:
    """States, results, signals, errors, activities, checkpoints, progress, history: not one of them is legible."""
    async with engine(codec=aes()) as e, e.worker(Vault(), Patient(), echo, burn, **BRIEF):
        instance = await whole_life(e)
        patient = await e.app.insert(Patient.wait, Secret(CANARY))
        await e.rows.until(patient, status="executing")
        await e.app.cancel(patient.id, reason="enough")
        ending = await e.end(patient)
        assert isinstance(ending, Cancelled)
        assert ending.reason == f"enough (and then on_cancel raised RuntimeError: stuck with {CANARY})"
        await e.app.insert(Vault.start, Secret(CANARY), delay=seconds(3600))
        text = await dump(e.rows)
        assert "encrypted:1:" in text
        assert [line for line in text.splitlines() if CANARY in line] == []

        # And who has the codec reads all of it.
        one = await e.app.get(instance)
        assert one.result == {"text": CANARY, "count": 99}
        assert one.state == {"text": CANARY, "count": 1}
        history = await e.app.history(instance)
        assert [t.error for t in history if t.error] == [f"ValueError: lost {CANARY}"]
        assert [t.error_type for t in history if t.error] == ["ValueError"]
        assert ["in Vault.work" in t.traceback for t in history if t.traceback] == [True]
        assert history[0].state == {"text": CANARY, "count": 1}
        charged, *declined = await e.app.activities(instance)
        assert list(charged.parameters.values()) == [{"text": CANARY, "count": 1}]
        assert charged.result == {"text": CANARY, "count": 1}
        assert {a.error for a in declined} == {f"PermissionError: {CANARY}"}
        (progress,) = await e.app.progress(instance)
        assert (progress.message, progress.detail) == (f"half of {CANARY}", {"secret": CANARY})
        listed = [i async for i in e.app.list_all(machine="burn", payloads=True)]
        assert [i.state for i in listed] == [{"text": CANARY, "count": 0}]
        assert CANARY in (listed[0].last_error or "")
        assert "in burn" in (listed[0].traceback or "")
        stored = await e.rows.fetch(
            "select last_traceback from @.instances where last_traceback is not null "
            "union all select traceback from @.transitions where traceback is not null"
        )
        assert len(stored) == 4
        assert all(row[0].startswith("encrypted:1:") for row in stored)
    async with engine() as e:
        one = await e.app.get(instance)
        with pytest.raises(DecodeError, match=r"encrypted.*Durable\(codec=\.\.\.\)"):
            _ = one.state


async def test_reading_by_key(engine: Opening) -> None:
    """The journal is decrypted as by its id, also that of an ended instance; of an unknown key it is empty."""
    async with engine(codec=aes()) as e, e.worker(Vault(), echo, burn):
        handle = await e.app.insert(Vault.start, Secret(CANARY), unique_key="vault")
        await e.rows.until(handle, status="awaiting_signal")
        history = await e.app.history("vault")
        assert history[0].state == {"text": CANARY, "count": 1}
        assert history == await e.app.history(handle.id)
        assert await e.app.activities("vault") == await e.app.activities(handle.id) != []
        assert await e.app.progress("vault") == await e.app.progress(handle.id) != []
        assert await e.app.checkpoint("vault") == await e.app.checkpoint(handle.id)
        await handle.cancel()
        assert await e.app.history("vault") == await e.app.history(handle.id) != []
        assert (await e.app.history("other"), await e.app.checkpoint("other")) == ([], None)


async def test_reading_a_checkpoint(engine: Opening) -> None:
    """It is there while its step runs."""
    saved = asyncio.Event()

    @job
    async def save(secret: Secret, ctx: Context) -> None:
        await ctx.checkpoint({"saved": secret.text})
        saved.set()
        await asyncio.Event().wait()

    async with engine(codec=aes()) as e, e.worker(save):
        handle = await e.app.insert(save, Secret(CANARY), unique_key="k")
        await soon(saved.wait())
        for target in ("k", handle.id):
            found = await e.app.checkpoint(target)
            assert found is not None
            assert found.value == {"saved": CANARY}
        await handle.cancel()
        await e.end(handle)


@pytest.mark.parametrize("count", [1500, 10_001])
async def test_fan_outs_are_encrypted(engine: Opening, count: int) -> None:
    """Children that go in part by part, and that are read page by page."""
    async with engine(codec=aes()) as e, e.worker(Crowd(), leaf, queues={"default": 200}):
        handle = await e.app.insert(Crowd.spread, count)
        async with asyncio.timeout(90):
            assert await handle.wait() == Finished(handle.id, count)
        assert CANARY not in await dump(e.rows)


class Plain(Machine):
    """States and signals of types that take any text."""

    @step
    async def any(self, state: Any, ctx: Context) -> Outcome[Any]:
        return Done(state)

    @step
    async def text(self, state: str, ctx: Context) -> Outcome[str]:
        return Done(state)

    @step
    async def mapping(self, state: dict[str, Any], ctx: Context) -> Outcome[str]:
        return Done("never")


@pytest.mark.parametrize("step_", [Plain.any, Plain.text, Plain.mapping])
async def test_a_worker_without_the_codec_runs_nothing_encrypted(engine: Opening, step_: Any) -> None:
    """An envelope is never handed to a step, whatever type its state has; the row is put back."""
    async with engine(codec=aes()) as encrypting:
        state = {} if step_ is Plain.mapping else "text"
        handle = await encrypting.app.insert(step_, state)
    async with engine() as e:
        async with e.worker(Plain()):
            await e.seen.until(StateUndecodable)
        row = await e.rows.row(handle)
        assert row["seq"] == 0
        assert "pass Durable(codec=...)" in row["last_error"]


SWAPS: dict[str, str] = {
    "the state of another instance": "update @.instances i set state = o.state from @.instances o "
    "where i.id = $1 and o.id = $2",
    "a signal as the state": "update @.instances i set state = s.payload from @.signals s "
    "where i.id = $1 and s.target_id = $1 and $2 > 0",
    "the signal of another instance": "update @.signals i set payload = o.payload from @.signals o "
    "where i.target_id = $1 and o.target_id = $2",
    "the state as a signal": "update @.signals i set payload = o.state from @.instances o "
    "where i.target_id = $1 and o.id = $1 and $2 > 0",
    "a signal under another name": "update @.signals i set name = 'told', payload = o.payload from @.signals o "
    "where i.target_id = $1 and i.name = 'told' and o.target_id = $1 and o.name = 'plain' and $2 > 0",
    "a changed byte": "update @.instances set state = to_jsonb(overlay(state #>> '{}' placing 'AAAA' from 60)) "
    "where id = $1 and $2 > 0",
    "a state in clear": """update @.instances set state = '{"text": "x"}' where id = $1 and $2 > 0""",
    "a signal in clear": """update @.signals set payload = '{"text": "x"}' where target_id = $1 and $2 > 0""",
}


STATE_SWAPS = [swap for swap, sql in SWAPS.items() if sql.startswith("update @.instances")]


async def swapped(e: Engine, swap: str) -> list[Handle[str]]:
    """Two instances that wait and have their signals; of the first, something was moved or changed."""
    handles = [await e.app.insert(Waiter.wait, Secret(f"{n}"), queue="q") for n in range(2)]
    async with e.worker(Waiter(), queues={"q": 5}):
        for handle in handles:
            await e.rows.until(handle, status="awaiting_signal")
    for handle in handles:
        await handle.signal(Signal("plain", str), "x")
        await handle.signal(told, Secret(CANARY, handle.id))
    assert await e.rows.fetch(SWAPS[swap] + " returning 1", *(handle.id for handle in handles))
    return handles


@pytest.mark.parametrize("swap", [swap for swap in SWAPS if swap not in STATE_SWAPS])
async def test_a_signal_that_was_moved_or_changed_is_rejected(engine: Opening, swap: str) -> None:
    """Ciphertext of another row, field or signal is set aside with the reason; the instance waits for another."""
    async with engine(codec=aes()) as e:
        mine, other = await swapped(e, swap)
        async with e.worker(Waiter(), queues={"q": 5}):
            (event, *_) = await e.seen.until(SignalRejected)
            assert event.id == mine.id
            assert ("stored in clear" if "clear" in swap else "it was changed or copied") in event.reason
            assert await e.end(other) == Finished(other.id, f"{CANARY}/1")
            row = await e.rows.until(mine, status="awaiting_signal")
            assert (row["result"], row["crashes"], row["attempt"]) == (None, 0, 0)
            await mine.signal(told, Secret("good"))
            assert await e.end(mine) == Finished(mine.id, "good/0")


@pytest.mark.parametrize("swap", STATE_SWAPS)
async def test_a_state_that_was_moved_or_changed_is_refused(engine: Opening, swap: str) -> None:
    """Ciphertext of another row or field: the step does not run, the row is put back, and says why."""
    async with engine(codec=aes()) as e:
        mine, other = await swapped(e, swap)
        async with e.worker(Waiter(), queues={"q": 5}):
            (event, *_) = await e.seen.until(StateUndecodable)
            assert event.id == mine.id
            assert await e.end(other) == Finished(other.id, f"{CANARY}/1")
        row = await e.rows.row(mine)
        assert (row["status"], row["result"], row["crashes"], row["postponements"]) == ("runnable", None, 0, 1)
        assert row["last_error"].startswith(f"DecodeError: instance {mine.id}: its ")
        assert ("stored in clear" if "clear" in swap else "it was changed or copied") in row["last_error"]
        await e.rows.fetch("delete from @.instances where id = $1", mine.id)
        await e.rows.fetch("delete from @.signals where target_id = $1", mine.id)


async def test_a_moved_result_is_refused_by_who_waits(engine: Opening) -> None:
    """Results and errors of another row: refused by `wait`, told by `get`, and not handed to a parent."""
    async with engine(codec=aes()) as e:
        async with e.worker(echo, burn):
            one, two = [await e.app.insert(echo, Secret(str(n))) for n in range(2)]
            bad = [await e.app.insert(burn, Secret(str(n))) for n in range(2)]
            for handle in (one, two, *bad):
                await e.end(handle)
        swap = "update @.instances i set result = o.result, last_error = o.last_error from @.instances o "
        await e.rows.fetch(swap + "where i.id = $1 and o.id = $2", one.id, two.id)
        await e.rows.fetch(swap + "where i.id = $1 and o.id = $2", bad[0].id, bad[1].id)
        with pytest.raises(DecodeError, match=f"instance {one.id}: its result cannot be decoded: it was changed"):
            await one.wait()
        looked = await one.get()
        assert looked.state == {"text": "0", "count": 0}
        with pytest.raises(DecodeError, match="its result cannot be decoded"):
            _ = looked.result
        ending = await bad[0].wait()
        assert isinstance(ending, Failed)
        assert ending.error.startswith(f"(cannot be read: instance {bad[0].id}: its error cannot be decoded")


async def test_a_wrong_key_and_a_missing_key(engine: Opening) -> None:
    """Each says what it is; no row is lost, and the right key goes on with it."""
    async with engine(codec=aes("k1")) as e:
        handle = await e.app.insert(echo, Secret(CANARY))
    async with engine(codec=aes("k1", key=bytes(32))) as e:
        with pytest.raises(DecodeError, match="the given key 'k1' is another one"):
            _ = (await e.app.get(handle.id)).state
    async with engine(codec=aes("k2")) as e:
        with pytest.raises(DecodeError, match="encrypted with key 'k1', which AesGcm was not given"):
            _ = (await e.app.get(handle.id)).state
        async with e.worker(echo):
            (event,) = await e.seen.until(StateUndecodable)
        assert "encrypted with key 'k1'" in event.error
        await e.rows.fetch("update @.instances set eligible_at = now()")
    async with engine(codec=aes("k1", "k2", write="k2")) as e, e.worker(echo):
        assert await e.end(e.app.handle(handle.id, echo)) == Finished(handle.id, Secret(CANARY))


class Long(Machine):
    """Steps with rests between them, so that keys change in the middle of lives."""

    @step
    async def walk(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        if secret.count == 6:
            return Done(secret)
        return Next(self.walk, Secret(secret.text, secret.count + 1), delay=seconds(0.05))


async def test_keys_change_under_load(engine: Opening) -> None:
    """Old workers and new ones side by side, as in a deploy: every instance comes to its end."""
    old, both, new = aes("k1"), aes("k1", "k2", write="k1"), aes("k1", "k2", write="k2")
    async with engine(codec=old) as a, engine(codec=both) as b, engine(codec=new) as c:
        handles = await a.app.insert_many([Start(Long.walk, Secret(str(n))) for n in range(40)])
        async with b.worker(Long()):
            async with a.worker(Long()):
                await a.rows.when(lambda: reached(a, "count(*) filter (where seq > 1) >= 40"))
            async with c.worker(Long()):  # the old ones are gone: now the new key may write
                handles += await c.app.insert_many([Start(Long.walk, Secret(str(n))) for n in range(40, 60)])
                for n, handle in enumerate(handles):
                    assert await c.end(c.app.handle(handle.id, Long.walk)) == Finished(handle.id, Secret(str(n), 6))
        async with c.worker(Long()):  # alone: beside it the others may have taken every step
            last = await c.app.insert(Long.walk, Secret("60"))
            assert await c.end(last) == Finished(last.id, Secret("60", 6))
        keys = await c.rows.fetch(
            "select distinct convert_from(substr(s.raw, 3, get_byte(s.raw, 1)), 'UTF8') from "
            "(select decode(substr(state #>> '{}', 13), 'base64') as raw from @.instances) as s"
        )
        assert {row[0] for row in keys} >= {"k2"}


async def reached(e: Engine, what: str) -> bool:
    return bool(await e.rows.value(f"select {what} from @.instances"))


async def test_rows_from_before_the_codec(engine: Opening) -> None:
    """They are refused, unless that was asked for; their next states are encrypted."""
    async with engine() as e:
        handle = await e.app.insert(Vault.start, Secret(CANARY))
    async with engine(codec=aes()) as e:
        with pytest.raises(DecodeError, match="its state is stored in clear") as caught:
            _ = (await e.app.get(handle.id)).state
        assert "read_unencrypted" not in str(caught.value)
    async with engine(codec=aes(), read_unencrypted=True) as e:
        assert (await e.app.get(handle.id)).state == {"text": CANARY, "count": 0}
        async with e.worker(Vault(), echo, burn):
            await e.rows.until(handle, status="awaiting_signal")
            assert CANARY not in await dump(e.rows)
            await e.app.signal(handle.id, told, Secret(CANARY, 7))
            assert await e.end(e.app.handle(handle.id, Vault.start)) == Finished(handle.id, Secret(CANARY, 99))


async def test_signals_by_key_go_to_who_holds_it(engine: Opening) -> None:
    """The holder that was found has ended when the signal comes: the next one gets it, encrypted again."""
    async with engine(codec=aes()) as e, e.worker(Waiter()):
        first = await e.app.insert(Waiter.wait, Secret("1"), unique_key="k")
        await e.rows.until(first, status="awaiting_signal")
        holder = services_of(e.app).statements.live_id_of_key

        async def changes_hands() -> int:
            await e.app.cancel(first.id)
            handle = await e.app.insert(Waiter.wait, Secret("2"), unique_key="k")
            await e.rows.until(handle, status="awaiting_signal")
            return handle.id

        second: list[int] = []
        ask = services_of(e.app).statement_runner.run

        async def run(call: Any, what: str, *, may_run_twice: bool) -> Any:
            answer = await ask(call, what, may_run_twice=may_run_twice)
            if call.text == holder(b"k").text and not second:
                second.append(await changes_hands())
            return answer

        services_of(e.app).statement_runner = SimpleNamespace(run=run)  # type: ignore[assignment]
        assert await e.app.signal("k", told, Secret(CANARY))
        assert await e.end(e.app.handle(second[0], Waiter.wait)) == Finished(second[0], f"{CANARY}/2")

        async def run_late(call: Any, what: str, *, may_run_twice: bool) -> Any:
            answer = await ask(call, what, may_run_twice=may_run_twice)
            if call.text == holder(b"k").text:
                await e.app.insert(Waiter.wait, Secret("3"), unique_key="k")
            return answer

        # A holder that comes after the look-up is not sent a payload that was encrypted for no instance.
        services_of(e.app).statement_runner = SimpleNamespace(run=run_late)  # type: ignore[assignment]
        with pytest.raises(NoTarget):
            await e.app.signal("k", told, Secret(CANARY))


async def test_callers_connections(engine: Opening, dsn: str) -> None:
    """Inserts and signals in the transactions of others are encrypted too."""
    async with engine(codec=aes()) as e:
        connection = await asyncpg.connect(dsn)
        async with connection.transaction():
            many = await e.app.insert_many(
                [Start(Waiter.wait, Secret(f"{CANARY}{n}"), unique_key=f"k{n}") for n in range(3)],
                connection=connection,
            )
            await e.app.signal("k0", told, Secret(CANARY), connection=connection)
            with pytest.raises(NoTarget):
                await e.app.signal("k9", told, Secret(CANARY), connection=connection)
            assert await e.app.insert_many([], connection=connection) == []
        await connection.close()
        with (
            SyncDurable(dsn, schema=e.rows.schema, codec=aes()) as app,
            psycopg.connect(dsn) as blocking,
        ):
            one = app.insert(Waiter.wait, Secret(CANARY), connection=blocking, unique_key="sync")
            app.signal("sync", told, Secret(CANARY), connection=blocking)
            blocking.commit()
            app.signal("k1", told, Secret(CANARY))
            app.signal(many[2].id, told, Secret(CANARY))
        assert CANARY not in await dump(e.rows)
        async with e.worker(Waiter()):
            for n, handle in enumerate(many):
                assert await e.end(handle) == Finished(handle.id, f"{CANARY}/{CANARY}{n}")
            assert await e.end(e.app.handle(one.id, Waiter.wait)) == Finished(one.id, f"{CANARY}/{CANARY}")


async def test_unique_keys_with_a_codec(engine: Opening) -> None:
    """Ids that were drawn for rows that do not go in are lost, and nothing else."""
    async with engine(codec=aes()) as e, e.worker(Waiter(), echo):
        first = await e.app.insert(Waiter.wait, Secret("1"), unique_key="k")
        same = await e.app.insert(Waiter.wait, Secret("2"), unique_key="k", on_conflict="existing")
        assert same.id == first.id
        assert await e.app.insert(Waiter.wait, Secret("3"), unique_key="k", on_conflict="skip") is None
        await e.app.cancel(first.id)


class Ledgers(Machine):
    """A step in a transaction, a step in a thread, one that dies."""

    @step(transactional=True)
    async def write(self, secret: Secret, ctx: Context) -> Outcome[str]:
        assert secret == Secret(CANARY)
        return Next(self.count, secret)

    @step
    def count(self, secret: Secret, ctx: Context) -> Outcome[str]:
        saved = ctx.sync.run("threaded", len, secret.text)
        ctx.sync.checkpoint({"saved": secret.text})
        return Done(f"{secret.text} {saved}")

    @step
    async def die(self, secret: Secret, ctx: Context) -> Outcome[str]:
        await asyncio.sleep(60)
        return Done("never")


async def test_transactions_threads_and_dead_letters(engine: Opening) -> None:
    """They are encrypted like all others, and the hook is handed what it can read."""
    letters: list[Any] = []

    async def hook(one: Instance) -> None:
        letters.append(one.state)

    async with engine(codec=aes()) as e, e.worker(Ledgers(), max_crashes=3, on_dead_letter=hook, **BRIEF):
        handle = await e.app.insert(Ledgers.write, Secret(CANARY))
        assert await e.end(handle) == Finished(handle.id, f"{CANARY} {len(CANARY)}")
        poison = await e.app.insert(Ledgers.die, Secret(CANARY))
        await e.rows.until(poison, status="executing")
        await e.rows.fetch(
            "update @.instances set crashes = 2, lease_expires_at = now() - interval '1 h' where id = $1", poison.id
        )
        ending = await e.end(poison)
        assert isinstance(ending, Failed)
        assert ending.error.startswith("crash loop: step die")  # the engine's own words
        await e.rows.when(lambda: told_of(letters))
        assert letters == [{"text": CANARY, "count": 0}]
        assert CANARY not in await dump(e.rows)


async def told_of(letters: list[Any]) -> bool:
    return bool(letters)


class Failing:
    """A codec that cannot encode what it does not like."""

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        if b"bad" in data:
            raise RuntimeError(f"cannot encode {data!r}")
        return data[::-1]

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        return data[::-1]


@job(retry=RetryPolicy(attempts=1))
async def bad_result(state: str) -> str:
    return f"bad {CANARY}"


@job(retry=RetryPolicy(attempts=1))
async def bad_error(state: str) -> str:
    raise ValueError(f"bad {CANARY}")


async def test_a_codec_that_fails(engine: Opening) -> None:
    """A refused insert, a step's error; a text that cannot be encoded is lost rather than stored in clear."""
    async with engine(codec=Failing()) as e, e.worker(bad_result, bad_error):
        with pytest.raises(EncodeError, match=r"the codec could not encode state \(RuntimeError\)"):
            await e.app.insert(bad_result, f"bad {CANARY}")
        first, second = await e.app.insert_many([Start(bad_result, "x"), Start(bad_error, "x")])
        ending = await e.end(first)
        assert isinstance(ending, Failed)
        assert "the codec could not encode result (RuntimeError)" in ending.error
        ending = await e.end(second)
        assert isinstance(ending, Failed)
        assert ending.error == "EncodeError: the codec could not encode error (RuntimeError)"
        assert CANARY not in await dump(e.rows)


@pytest.mark.parametrize(
    "make",
    [
        lambda: AesGcm({}),
        lambda: AesGcm({"k": b"short"}),
        lambda: AesGcm({"k": "x" * 32}),  # type: ignore[dict-item]
        lambda: AesGcm({"": bytes(32)}),
        lambda: AesGcm({"a": bytes(32), "b": bytes(32)}),
        lambda: AesGcm({"a": bytes(32)}, write="b"),
        lambda: Durable("postgresql://", codec=object()),  # type: ignore[arg-type]
    ],
)
def test_refused_keys(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_what_is_stored_shows_nothing_of_the_key() -> None:
    """The same payload is never stored the same, and repr names keys only."""
    codec, context = aes(), PayloadContext("s", 1, "state")
    assert codec.encode(b"x", context) != codec.encode(b"x", context)
    assert repr(codec) == "AesGcm(write='k1', read=['k1'])"
    for changed in (PayloadContext("t", 1, "state"), PayloadContext("s", 2, "state"), PayloadContext("s", 1, "result")):
        with pytest.raises(DecodeError):
            codec.decode(codec.encode(b"x", context), changed)
    for garbage in (b"", b"\x01", b"\x02\x00", b"\x01\xff\xff", codec.encode(b"x", context)[:-1]):
        with pytest.raises(DecodeError):
            codec.decode(garbage, context)


def test_a_payload_with_the_prefix_is_rejected() -> None:
    """No text of a user's can pass for an envelope."""
    for type_ in (str, Any, str | int):
        with pytest.raises(EncodeError, match="marks encrypted payloads"):
            Signal[Any]("s", type_).codec.encode("encrypted:1:AAAA")  # type: ignore[arg-type]
