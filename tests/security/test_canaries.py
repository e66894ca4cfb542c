"""A secret that goes through every path reaches no log, no event, no error and no repr: with ids they have to do."""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections.abc import Awaitable
from dataclasses import dataclass
from urllib.parse import urlsplit

import asyncpg
import pytest
from tests.support.canaries import CANARY, Crowd, Patient, Secret, Vault, Waiter, burn, echo, leaf, told
from tests.support.engine import BRIEF, Engine, Opening

from gen_durable import (
    Context,
    Done,
    Durable,
    Finished,
    Machine,
    Next,
    Outcome,
    RetryPolicy,
    Signal,
    SyncDurable,
    job,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.errors import DatabaseRefused, DatabaseUnavailable, GenDurableError
from gen_durable.telemetry import InstanceDeadLettered, SignalRejected, StateUndecodable


@dataclass
class Looked:
    """What steps have seen of themselves."""

    texts: list[str]


class Mirror(Machine):
    """Looks at itself, with a secret in everything that it was given."""

    def __init__(self, looked: Looked) -> None:
        self.looked = looked

    @step
    async def look(self, secret: Secret, ctx: Context) -> Outcome[str]:
        await ctx.run("x", leaf_of, CANARY)
        self.looked.texts.append(repr(ctx) + str(ctx) + repr(ctx.inbox) + repr(ctx.awaited) + repr(ctx.children))
        return Done("x")


async def leaf_of(text: str) -> str:
    return text


@job(retry=RetryPolicy(attempts=1))
def threaded(secret: Secret) -> str:
    raise RuntimeError(f"in a thread: {secret.text}")


@job(retry=RetryPolicy(attempts=1))
async def grouped(secret: Secret) -> str:
    try:
        raise ValueError(secret.text)
    except ValueError as error:
        raise ExceptionGroup(secret.text, [error]) from error


async def everything(e: Engine) -> Looked:
    """All that can be done with a payload, well and badly."""
    looked = Looked([])
    machines = (Vault(), Waiter(), Patient(), Crowd(), Mirror(looked), echo, burn, leaf, threaded, grouped)
    async with e.worker(*machines, max_crashes=3, **BRIEF):
        vault = await e.app.insert(Vault.start, Secret(CANARY), unique_key="vault")
        await e.rows.until(vault, status="awaiting_signal")
        await e.app.signal("vault", told, Secret(CANARY, 7), dedup_key="once")
        endings = [await e.end(vault)]
        patient = await e.app.insert(Patient.wait, Secret(CANARY))
        await e.rows.until(patient, status="executing")
        await e.app.cancel(patient.id, reason="enough")
        endings.append(await e.end(patient))
        others = (
            await e.app.insert(Mirror.look, Secret(CANARY)),
            await e.app.insert(threaded, Secret(CANARY)),
            await e.app.insert(grouped, Secret(CANARY)),
            await e.app.insert(Crowd.spread, 1100),
        )
        endings += [await e.end(handle) for handle in others]
        # A signal that does not fit, an undecodable state, a poison row.
        waiting = await e.app.insert(Waiter.wait, Secret("x"))
        await e.rows.until(waiting, status="awaiting_signal")
        await e.app.signal(waiting.id, Signal("told", str), CANARY)
        (rejected, *_) = await e.seen.until(SignalRejected)
        looked.texts += [rejected.reason, repr(await e.app.signals(waiting.id, payloads=True))]
        await e.app.signal(waiting.id, told, Secret(CANARY, 1))
        endings.append(await e.end(waiting))
        bad = "insert into @.instances (fsm, step, state) values ('Waiter', 'wait', $1) returning id"
        await e.rows.fetch(bad, f'["{CANARY}"]')
        await e.seen.until(StateUndecodable)
        poison = await e.app.insert(Patient.wait, Secret(CANARY))
        await e.rows.until(poison, status="executing")
        for _ in range(3):
            await e.rows.fetch("update @.instances set lease_expires_at = now() where id = $1", poison.id)
            if e.seen.of(InstanceDeadLettered):
                break
            await asyncio.sleep(0.3)
        await e.app.cancel(poison.id)
        instances = [repr(await e.app.get(h.id)) for h in (vault, patient, waiting)]
        instances += [repr(i) for i in (await e.app.list(payloads=True)).instances]
        journal = [*await e.app.history(vault.id), *await e.app.activities(vault.id), *await e.app.progress(vault.id)]
        looked.texts += [*instances, *map(repr, journal), repr(e.app), repr(services_of(e.app).pool), repr(vault)]
    assert endings
    return looked


def told_by(caplog: pytest.LogCaptureFixture) -> str:
    """Every record as a formatter writes it, tracebacks included."""
    form = logging.Formatter("%(name)s %(message)s")
    return "\n".join(form.format(record) for record in caplog.records)


async def test_logs_events_and_reprs(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """All loggers at DEBUG, tracebacks included; every event; the reprs of what users and steps hold."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "gen_durable")
    async with engine() as e:
        looked = await everything(e)
        assert [event for event in e.seen.events if CANARY in repr(event)] == []
    assert looked.texts
    assert [text for text in looked.texts if CANARY in text] == []
    logged = told_by(caplog)
    assert "raised RuntimeError" in logged  # there is something to be leaked
    assert [line for line in logged.splitlines() if CANARY in line] == []


def whole(error: BaseException) -> str:
    """An error as a traceback shows it, with all that led to it."""
    return "".join(traceback.format_exception(error))


async def failure(refused: Awaitable[object]) -> BaseException:
    with pytest.raises(GenDurableError) as caught:
        await refused
    return caught.value


async def test_what_the_server_says_is_not_passed_on(
    engine: Opening, caplog: pytest.LogCaptureFixture, dsn: str
) -> None:
    """A constraint that quotes the failing row: neither messages, nor tracebacks, nor logs, nor last_error do."""
    caplog.set_level(logging.DEBUG)
    async with engine() as e:
        await e.rows.fetch(f"alter table @.instances add constraint c check (state::text not like '%{CANARY}%')")
        error = await failure(e.app.insert(echo, Secret(CANARY)))
        assert isinstance(error, DatabaseRefused)
        assert "SQLSTATE 23514" in str(error)
        assert CANARY not in whole(error)
        connection = await asyncpg.connect(dsn)
        error = await failure(e.app.insert(echo, Secret(CANARY), connection=connection))
        await connection.close()
        assert CANARY not in whole(error)

        async with e.worker(Mover(), **BRIEF):  # in a flush
            handle = await e.app.insert(Mover.start, Secret("x"))
            ending = await e.end(handle)
            assert CANARY not in str(ending)
        await e.rows.fetch("alter table @.instances drop constraint c")
        # In a background task of the worker, which no call waits for.
        await e.rows.fetch(
            "insert into @.instances (fsm, step, state, status, lease_expires_at, claims) "
            f"values ('echo', 'run', '{{\"text\": \"{CANARY}\"}}', 'executing', now() - interval '1 h', 1)"
        )
        await e.rows.fetch("alter table @.instances add constraint c check (status <> 'runnable') not valid")
        async with e.worker(echo, **BRIEF):
            await e.rows.when(lambda: logged(caplog, "reaper: the database refuses a row"))
        await e.rows.fetch("alter table @.instances drop constraint c")
        await e.rows.fetch("delete from @.instances")
    assert "SQLSTATE 23514" in told_by(caplog)
    assert CANARY not in told_by(caplog)


async def logged(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return words in caplog.text


class Mover(Machine, retry=RetryPolicy(attempts=1)):
    @step
    async def start(self, secret: Secret, ctx: Context) -> Outcome[str]:
        return Next(self.go_on, Secret(CANARY))

    @step
    async def go_on(self, secret: Secret, ctx: Context) -> Outcome[str]:
        return Done("x")


PASSWORDS = ["{}", "{}/x", "{}@x", "{}:x", "{}#x", "{}?x", "x[{}", "{}%zz", "{},x/y", "x,{}/y"]


@pytest.mark.parametrize("form", PASSWORDS)
async def test_passwords(form: str, caplog: pytest.LogCaptureFixture) -> None:
    """In a DSN that leads nowhere, or that cannot even be read: no message, traceback, log or repr holds a piece."""
    caplog.set_level(logging.DEBUG)
    bad = f"postgresql://nobody:{form.format(CANARY)}@127.0.0.1:1/none"
    for make in (lambda: Durable(bad), lambda: Durable("postgresql://127.0.0.1:1/x", listen_dsn=bad)):
        app = make()
        assert CANARY not in repr(app)
        error = await failure(app.open())
        assert isinstance(error, DatabaseUnavailable)
        assert CANARY not in whole(error)
    blocking = SyncDurable(bad)
    with pytest.raises(GenDurableError) as caught:
        await asyncio.to_thread(blocking.open)
    assert CANARY not in whole(caught.value)
    assert CANARY not in told_by(caplog)


async def test_a_refused_login(dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    parts = urlsplit(dsn)
    bad = parts._replace(netloc=f"nobody_{CANARY[:3]}:{CANARY}@{parts.netloc.rpartition('@')[2]}").geturl()
    error = await failure(Durable(bad).open())
    assert CANARY not in whole(error)
    assert CANARY not in told_by(caplog)


async def test_what_the_server_sees_of_statements(engine: Opening) -> None:
    """Payloads are parameters: pg_stat_activity shows statements without them."""
    async with engine() as e, e.worker(echo):
        assert isinstance(await e.end(await e.app.insert(echo, Secret(CANARY))), Finished)
        texts = await e.rows.fetch("select query from pg_stat_activity where query like '%' || $1 || '%'", CANARY[:9])
        assert [row[0] for row in texts if CANARY in row[0] and "pg_stat_activity" not in row[0]] == []


async def test_error_texts_are_cut(engine: Opening) -> None:
    """What a step raises is kept in last_error, which is what it is for: at most 8,000 characters of it."""
    async with engine() as e, e.worker(verbose):
        handle = await e.app.insert(verbose, "x" * 50_000)
        await e.end(handle)
        assert len((await handle.get()).last_error or "") == 8000


@job(retry=RetryPolicy(attempts=1))
async def verbose(text: str) -> str:
    raise ValueError(text)


async def test_a_step_sees_no_dsn(engine: Opening, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing public about a context leads to the database's address, and the engine puts none into the environment."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    seen: list[str] = []

    @job
    async def look(text: str, ctx: Context) -> str:
        names = [name for name in dir(ctx) if not name.startswith("_") and name not in ("connection", "sync")]
        seen.extend(f"{name}={getattr(ctx, name)!r}" for name in names)
        seen.append(str({k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "GEN_DURABLE_TEST"))}))
        return text

    async with engine() as e, e.worker(look):
        assert isinstance(await e.end(await e.app.insert(look, "x")), Finished)
    assert len(seen) > 10
    assert [text for text in seen if dsn in text] == []
