"""Log lines carry ids and names: never a state, a result, a signal's payload, an error's values, or a password."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import psycopg
import pydantic
import pytest
from tests.support.engine import BRIEF, Engine, Opening, seconds

from gen_durable import Await, Context, Done, Durable, Machine, Outcome, RetryPolicy, Signal, Start, job, step
from gen_durable.core.services import services_of
from gen_durable.errors import GenDurableError
from gen_durable.telemetry import Event, StateUndecodable

CANARY = "canary-7f3a"


@dataclass(frozen=True)
class Secret:
    text: str


class Strict(pydantic.BaseModel):
    kind: Literal["a"]
    number: int


told = Signal("told", Secret)


class Vault(Machine, retry=RetryPolicy(attempts=1)):
    @step
    async def store(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        return Await(told, then=self.reveal, state=secret)

    @step
    async def reveal(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        first = ctx.take(told)
        return Done(first or secret)

    @step
    async def lose(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        raise ValueError(f"lost {secret.text}")

    @step
    async def spill(self, secret: Secret, ctx: Context) -> Outcome[Secret]:
        return Done({secret.text: object()})  # type: ignore[arg-type]

    @step
    async def choose(self, kind: Literal["a", "b"], ctx: Context) -> Outcome[str]:
        return Done(kind)

    @step
    async def strict(self, model: Strict, ctx: Context) -> Outcome[str]:
        return Done("ok")


@job(retry=RetryPolicy(attempts=1))
def burn(secret: Secret) -> str:
    raise RuntimeError(secret.text)


BAD_ROWS = [
    ("choose", f'"{CANARY}"'),
    ("strict", f'{{"kind": "{CANARY}", "number": 1}}'),
    ("strict", f'{{"kind": "a", "number": "{CANARY}"}}'),
    ("strict", f'{{"{CANARY}": 1}}'),
    ("store", f'["{CANARY}"]'),
]


async def everything(e: Engine) -> None:
    """All that can be done with a payload, well and badly."""
    for step_, state in BAD_ROWS:
        sql = "insert into @.instances (fsm, step, state) values ('Vault', $1, $2) returning id"
        await e.rows.fetch(sql, step_, state)
    async with e.worker(Vault(), burn, **BRIEF):
        await e.seen.until(StateUndecodable, count=len(BAD_ROWS))
        handle = await e.app.insert(Vault.store, Secret(CANARY), unique_key="k")
        await e.rows.until(handle, status="awaiting_signal")
        await handle.signal(told, Secret(CANARY), dedup_key="d")
        await e.end(handle)
        starts = [Start(step_, Secret(CANARY)) for step_ in (Vault.lose, Vault.spill)]
        for one in [*await e.app.insert_many(starts), await e.app.insert(burn, Secret(CANARY))]:
            await e.end(one)
        for refused in (
            e.app.insert(Vault.store, CANARY),  # type: ignore[arg-type]
            e.app.insert(Vault.store, Secret(CANARY + "\0")),
            e.app.signal(handle.id, told, Secret(CANARY)),
        ):
            with pytest.raises(GenDurableError) as caught:
                await refused
            assert CANARY not in str(caught.value)


async def test_no_payload_in_logs_or_events(engine: Opening, caplog: pytest.LogCaptureFixture) -> None:
    """The canary that went through every path is in no log line at any level, and in no event."""
    caplog.set_level(logging.DEBUG)
    async with engine() as e:
        await everything(e)
        leaked = [event for event in e.seen.events if CANARY in repr(event)]
    lines = [record.getMessage() + str(record.exc_text or "") for record in caplog.records]
    assert [line for line in lines if CANARY in line] == []
    assert leaked == []


async def test_no_payload_in_the_errors_of_undecodable_rows(engine: Opening) -> None:
    """What is stored as the reason of an undecodable row does not quote the state either."""
    async with engine() as e:
        await everything(e)
        reasons = await e.rows.fetch("select last_error from @.instances where last_error is not null and seq = 0")
        assert len(reasons) == len(BAD_ROWS)
        assert [row[0] for row in reasons if CANARY in row[0]] == []


async def test_no_password_in_logs(dsn: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """The password is in no log line and no message, neither when all is well nor when connections fail."""
    caplog.set_level(logging.DEBUG)
    password = urlsplit(dsn).password
    if password is None:
        pytest.skip("the server takes logins without a password")
    app = Durable(dsn, schema=schema)
    events: list[Event] = []
    app.events.subscribe(events.append)
    async with app:
        await app.insert(burn, Secret("x"))
        assert password not in repr(app) + repr(services_of(app).connection_target) + repr(services_of(app).pool)
    wrong = f"postgresql://nobody:{CANARY}@{urlsplit(dsn).hostname}:{urlsplit(dsn).port}/none"
    for bad in (wrong, f"postgresql://nobody:{CANARY}@127.0.0.1:1/none"):
        with pytest.raises(GenDurableError) as caught:
            await Durable(bad).open()
        assert CANARY not in str(caught.value)
    text = caplog.text + "".join(map(repr, events))
    assert password not in text
    assert CANARY not in text


async def test_an_outage_leaks_nothing(engine: Opening, caplog: pytest.LogCaptureFixture, dsn: str) -> None:
    """While connections are killed under a working engine, the warnings name the trouble and nothing else."""
    caplog.set_level(logging.DEBUG)
    async with engine() as e, e.worker(Vault(), burn, **BRIEF):
        handles = [await e.app.insert(burn, Secret(CANARY)) for _ in range(5)]
        with psycopg.connect(dsn, autocommit=True) as blocking:
            blocking.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'gen_durable' "
                "and query like %s",
                [f"%{e.rows.schema}%"],
            )
        for handle in handles:
            await handle.wait(seconds(5))
    assert CANARY not in caplog.text
