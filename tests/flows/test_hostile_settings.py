"""Settings of the role under which the engine must work, or refuse to open with a sentence.

Each is set on a login of the test's own (`alter role ... set`), as an administrator or a hosting provider does. The
flow has an insert, a signal, children, a timer, a transactional step, a cancel and waits, with rows that several
workers wake; a call in a caller's transaction runs under the same settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest
from tests.support.embedded import EmbeddedDirectory, build
from tests.support.engine import BRIEF
from tests.support.roles import PASSWORD, login_dsn

from gen_durable import (
    Await,
    Cancelled,
    Context,
    Done,
    Durable,
    Failed,
    Finished,
    Machine,
    Next,
    Outcome,
    RetryPolicy,
    ScheduleChildren,
    Signal,
    Start,
    Worker,
    job,
    step,
)
from gen_durable.errors import ConfigError, InputError

__all__ = ["build"]
pytestmark = pytest.mark.direct("the settings are those of a role of the test")
go = Signal("go", dict[str, float])
SOON = timedelta(seconds=20)
SLOW = 0.6  # longer than the timeouts below


@job
async def double(number: float) -> float:
    return number * 2


class Flow(Machine):
    """Children, a timer, a transactional step, a signal."""

    @step
    async def start(self, state: dict[str, Any], ctx: Context) -> Outcome[Any]:
        return ScheduleChildren([Start(double, 0.1 + 0.2), Start(double, 1e16)], then=Flow.joined, state=state)

    @step
    async def joined(self, state: dict[str, Any], ctx: Context) -> Outcome[Any]:
        state["doubled"] = sorted(ctx.results(double))
        return Next(Flow.written, state, delay=timedelta(seconds=0.05))

    @step(transactional=True)
    async def written(self, state: dict[str, Any], ctx: Context) -> Outcome[Any]:
        await ctx.connection.execute("create temporary table if not exists pg_temp.written (n int)")
        await ctx.connection.execute("insert into pg_temp.written values (1)")
        await asyncio.sleep(SLOW)
        return Await(go, then=Flow.end, state=state)

    @step
    async def end(self, state: dict[str, Any], ctx: Context) -> Outcome[Any]:
        return Done({"state": state, "signal": ctx.take(go)})


class Patient(Machine):
    """Waits until it is cancelled."""

    @step
    async def start(self, state: None, ctx: Context) -> Outcome[None]:
        return Await(go, then=Patient.start, state=None)


SETTINGS = {
    "repeatable-read": {"default_transaction_isolation": "repeatable read"},
    "serializable": {"default_transaction_isolation": "serializable"},
    "read-only": {"default_transaction_read_only": "on"},
    "read-only-and-strict": {"default_transaction_read_only": "on", "default_transaction_isolation": "serializable"},
    "deferrable": {"default_transaction_deferrable": "on", "default_transaction_isolation": "serializable"},
    "statement-timeout": {"statement_timeout": "200ms"},
    "lock-timeout": {"lock_timeout": "50ms"},
    "idle-in-transaction": {"idle_in_transaction_session_timeout": "100ms"},
    "idle-session": {"idle_session_timeout": "100ms"},
    "transaction-timeout": {"transaction_timeout": "200ms"},
    "kathmandu": {"timezone": "Asia/Kathmandu"},
    "far-west": {"timezone": "<-12>12"},
    "german-dates": {"datestyle": "German, DMY", "intervalstyle": "sql_standard"},
    "latin1": {"client_encoding": "latin1"},
    "sql-ascii": {"client_encoding": "sql_ascii"},
    "search-path": {"search_path": "nowhere"},
    "empty-search-path": {"search_path": "''"},
    "jit": {"jit": "on", "jit_above_cost": "0", "jit_inline_above_cost": "0", "jit_optimize_above_cost": "0"},
    "bytea-escape": {"bytea_output": "escape"},
    "few-digits": {"extra_float_digits": "-15"},
    "old-strings": {"standard_conforming_strings": "off", "backslash_quote": "on"},
    "no-null-in-arrays": {"array_nulls": "off", "transform_null_equals": "on"},
    "no-index": {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "off"},
    "custom-plans": {"plan_cache_mode": "force_custom_plan"},
    "small-memory": {"work_mem": "64kB", "temp_buffers": "800kB"},
    "row-security": {"row_security": "off"},
    "messages": {"client_min_messages": "debug1", "log_statement": "all"},
}
ALONE = (
    *("repeatable-read", "serializable", "read-only-and-strict", "deferrable", "statement-timeout", "lock-timeout"),
    *("idle-in-transaction", "idle-session", "transaction-timeout", "latin1", "jit", "no-index"),
)
"""Settings that `make test` tries one at a time. It combines the others, which `make test-long` tries alone."""
COMBINED = {
    "texts-and-times": ("kathmandu", "german-dates", "bytea-escape", "few-digits", "old-strings", "no-null-in-arrays"),
    "names-and-plans": (
        "far-west",
        "sql-ascii",
        "search-path",
        "custom-plans",
        "small-memory",
        "row-security",
        "messages",
    ),
    "read-only-and-no-path": ("read-only", "empty-search-path"),
}
CASES = [
    *(pytest.param(SETTINGS[name], id=name, marks=() if name in ALONE else pytest.mark.long) for name in SETTINGS),
    *(
        pytest.param({key: value for name in names for key, value in SETTINGS[name].items()}, id=combination)
        for combination, names in COMBINED.items()
    ),
]


def test_every_setting_is_tried() -> None:
    assert sorted([*ALONE, *(name for names in COMBINED.values() for name in names)]) == sorted(SETTINGS)


@contextmanager
def hostile_login(dsn: str, schema: str, settings: dict[str, str]) -> Iterator[str]:
    """A login with these settings, on one schema."""
    login = f"{schema}_hostile"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create role {login} superuser login password '{PASSWORD}'")
        try:
            for name, value in settings.items():
                try:
                    quoted = value if value == "''" else f"'{value}'"
                    connection.execute(f"alter role {login} set {name} = {quoted}")
                except psycopg.errors.UndefinedObject:
                    pytest.skip(f"this server has no {name}")
                except (psycopg.errors.InvalidParameterValue, psycopg.errors.FeatureNotSupported):
                    pytest.skip(f"this server refuses {name} = {value}")
            yield login_dsn(dsn, login)
        finally:
            connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [login])
            connection.execute(f"drop owned by {login}")
            connection.execute(f"drop role {login}")


@asynccontextmanager
async def working(dsn: str, schema: str, **options: Any) -> AsyncIterator[Durable]:
    """Two workers in two engines, so that rows are woken between processes too."""
    async with (
        Durable(dsn, schema=schema, **options) as app,
        Durable(dsn, schema=schema, **options) as other,
        Worker(app, machines=[Flow(), Patient()], jobs=[double], **BRIEF),
        Worker(other, machines=[Flow(), Patient()], jobs=[double], **BRIEF),
    ):
        yield app


async def run_flow(dsn: str, schema: str, **options: Any) -> None:
    state = {"ünï": "\\n'\"", "n": 0.1 + 0.2}
    async with working(dsn, schema, **options) as app:
        flows = [await app.insert(Flow.start, state, unique_key=f"flow-{n}") for n in range(5)]
        patient = await app.insert(Patient.start, None)
        caller = await asyncpg.connect(dsn)
        try:
            async with caller.transaction(readonly=False):
                if (await caller.fetchval("show transaction_read_only")) == "on":
                    await caller.execute("set transaction read write")
                late = await app.insert(Flow.start, state, unique_key="late", connection=caller)
        finally:
            await caller.close()
        for flow in (*flows, late):
            await app.signal(flow.id, go, {"f": 0.30000000000000004}, dedup_key="once")
        for flow in (*flows, late):
            ended = await flow.wait(timeout=SOON)
            assert isinstance(ended, Finished), ended
            assert ended.result == {
                "state": state | {"doubled": [0.6000000000000001, 2e16]},
                "signal": {"f": 0.30000000000000004},
            }
        await app.cancel(patient.id, reason="enough")
        assert isinstance(await patient.wait(timeout=SOON), Cancelled)
        assert (await app.count(status="done")).value == 18
        assert len((await app.get(flows[0].id)).metadata or {}) == 0


@pytest.mark.parametrize("settings", CASES)
async def test_a_flow_works_under(dsn: str, schema: str, settings: dict[str, str]) -> None:
    """As under the server's own defaults, whatever the role says."""
    with hostile_login(dsn, schema, settings) as hostile:
        await run_flow(hostile, schema)


class Strict(Machine, retry=RetryPolicy(attempts=1)):
    """Changes the isolation level of its transaction."""

    @step(transactional=True)
    async def start(self, state: None, ctx: Context) -> Outcome[None]:
        await ctx.connection.execute("set transaction isolation level repeatable read")
        return Done()


async def test_a_step_that_changes_its_isolation_level_is_refused(dsn: str, schema: str) -> None:
    """Its outcome could miss a signal, so it fails with a sentence that says so."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Strict()]):
        ended = await (await app.insert(Strict.start, None)).wait(timeout=SOON)
        assert isinstance(ended, Failed)
        assert "the transaction is repeatable read, and a wake-up could be lost in it" in ended.error


async def test_a_strict_pool_works_or_refuses(dsn: str, schema: str) -> None:
    """With `pool=` the caller's settings stay: all calls work, except a cancel that frees a gate: it says why."""
    settings = {"default_transaction_isolation": "serializable"}
    async with (
        asyncpg.create_pool(dsn, server_settings=settings, min_size=1, max_size=3) as pool,
        Durable(pool=pool, schema=schema) as client,
        Durable(dsn, schema=schema) as app,
    ):
        free = await client.insert(Patient.start, None)
        gated = [await client.insert(Patient.start, None, partition_key="k") for _ in range(2)]
        await client.signal(free.id, go, {})
        await client.cancel(free.id)
        assert isinstance(await free.wait(timeout=SOON), Cancelled)
        with pytest.raises(InputError, match="a wake-up could be lost in it: use READ COMMITTED"):
            await client.cancel(gated[0].id)
        await app.cancel(gated[0].id)


async def test_behind_a_pooler_a_role_is_refused(dsn: str, pooled: str, schema: str) -> None:
    """There nothing can be set for a session, so `open` names the setting and what to do."""
    for settings, words in (
        ({"default_transaction_isolation": "repeatable read"}, "default_transaction_isolation is 'repeatable read'"),
        ({"statement_timeout": "200ms"}, "statement_timeout is 200 ms"),
    ):
        database = f"{schema}_strict"
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(f"create database {database}")
            try:
                for name, value in settings.items():
                    connection.execute(f"alter database {database} set {name} = '{value}'")
                parts = urlsplit(pooled)
                behind = urlunsplit(parts._replace(path=f"/{database}"))
                direct = urlunsplit(urlsplit(dsn)._replace(path=f"/{database}"))
                async with Durable(direct, schema=schema, migrate=True):
                    pass
                for pooler in (None, "transaction"):
                    with pytest.raises(ConfigError, match=words):
                        await Durable(behind, schema=schema, pooler=pooler).open()
            finally:
                connection.execute(f"drop database {database} with (force)")


def fill_notify_queue(directory: EmbeddedDirectory, dsn: str) -> None:
    for n in range(1000):
        directory.query(dsn, f"select pg_notify('anything', repeat('x', 7900) || {n})")


@pytest.fixture
def small_notify_queue(build: Callable[[Path], EmbeddedDirectory], tmp_path: Path) -> Iterator[str]:
    """A server of the test's own whose NOTIFY queue is full, because a session that listens is in a transaction."""
    directory = build(tmp_path / "server")
    dsn = directory.user().line()
    try:
        directory.query(dsn, "alter system set max_notify_queue_pages = 64")
    except psycopg.errors.UndefinedObject:
        pytest.skip("this server's NOTIFY queue has a fixed size of 8 GB")
    directory.write_rows(dsn)
    directory.kill_postgres()
    directory.rows_are_back(dsn)
    assert directory.query(dsn, "show max_notify_queue_pages") == [("64",)]
    with psycopg.connect(dsn) as sleeper:
        sleeper.execute("listen anything")
        sleeper.commit()
        sleeper.execute("select 1")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded):
            fill_notify_queue(directory, dsn)
        yield dsn
        sleeper.rollback()


@pytest.mark.direct("the server is the test's own")
async def test_a_full_notify_queue_delays_and_loses_nothing(small_notify_queue: str) -> None:
    """Calls of the engine work, and polling finds the work; so do callers' commits, unless they notify themselves."""
    dsn, schema = small_notify_queue, "full"
    async with Durable(dsn, schema=schema, migrate=True) as client, working(dsn, schema) as app:
        flow = await client.insert(Flow.start, {})
        patient = await client.insert(Patient.start, None)
        await app.signal(flow.id, go, {})
        assert isinstance(await flow.wait(timeout=SOON), Finished)
        await client.cancel(patient.id)
        assert isinstance(await patient.wait(timeout=SOON), Cancelled)
        caller = await asyncpg.connect(dsn)
        with pytest.raises(asyncpg.ProgramLimitExceededError, match="too many notifications"):
            async with caller.transaction():
                await app.insert(Flow.start, {}, connection=caller, notify="in_transaction")
        assert (await app.count(machine="Flow")).value == 1
        async with caller.transaction():
            handle = await app.insert(Patient.start, None, connection=caller)
        await caller.close()
        assert (await handle.get()).machine == "Patient"
        await handle.cancel()
