"""Plain SQL wakes workers with its commit, unless it passes `notify => false`; the clients notify by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.support.machine import M
from tests.support.rows import LIVE, ended, executing, instance, parent, parked
from tests.support.store import Store

from gen_durable import Durable, Worker, job
from gen_durable.core.services import services_of
from gen_durable.limits import Concurrency
from gen_durable.starts import Start
from gen_durable.store.types import OutgoingSignal

Notified = Callable[[str], list[str]]
INSERT = (
    "select * from @schema.insert('{a,a,a}', '{1,1,1}', '{s,s,s}', array['{}', '{}', '{}']::jsonb[], '{q,p,q}', '{}',"
    " '{}', '{}', '{}', '{}', '{}'NOTIFY)"
)


@pytest.fixture
def notified(dsn: str, schema: str) -> Iterator[Notified]:
    """Runs a statement, and returns the payloads that its commit has sent, in order."""
    with psycopg.connect(dsn, autocommit=True) as ear, psycopg.connect(dsn, autocommit=True) as caller:
        ear.execute(f"listen {schema}_wake")

        def run(statement: str) -> list[str]:
            caller.execute(statement.replace("@schema", schema).encode())
            caller.execute(f"select pg_notify('{schema}_wake', 'end')".encode())
            found: list[str] = []
            for message in ear.notifies(timeout=10):
                if message.payload == "end":
                    return found
                found.append(message.payload)
            raise AssertionError("the last notification did not arrive")

        yield run


CALLS: dict[str, tuple[str, str, set[str]]] = {
    "insert": ("", INSERT, {"queue:q", "queue:p"}),
    "insert of one": ("", "select @schema.insert('a', 's', queue => 'q'NOTIFY)", {"queue:q"}),
    "signal": (parked(1, queue="q"), "select @schema.signal(1, 'go'NOTIFY)", {"queue:q"}),
    "signal by key": (
        parked(1, queue="q", unique_key=b"k", unique_scope=LIVE),
        "select @schema.signal('k', 'go'NOTIFY)",
        {"queue:q"},
    ),
    "signal_or_start": (
        "",
        """select @schema.signal_or_start('k', 'go', '1', '{"fsm": "m", "step": "s", "queue": "q"}'NOTIFY)""",
        {"queue:q"},
    ),
    "signal_or_start of a holder": (
        parked(1, queue="p", unique_key=b"k", unique_scope=LIVE),
        """select @schema.signal_or_start('k', 'go', '1', '{"fsm": "m", "step": "s", "queue": "q"}'NOTIFY)""",
        {"queue:p"},
    ),
    "debounce": (
        instance(1, queue="q", partition_key="p", unique_key=b"k", unique_scope="{runnable}"),
        """select @schema.debounce('k', '{"fsm": "m", "step": "s", "delay": 60}'NOTIFY)""",
        {"queue:q", "cancel_children:1"},
    ),
    "cancel": (
        parent(1, 1, queue="q") + instance(2, parent_id=1, parent_round=1),
        "select @schema.cancel(2, 'why'NOTIFY)",
        {"queue:q"},
    ),
    "cancel by key": (
        parent(1, 1, unique_key=b"k", unique_scope=LIVE) + instance(2, parent_id=1, parent_round=1),
        "select @schema.cancel('k', 'why'NOTIFY)",
        {"cancel_children:1"},
    ),
    "cancel of a running one": (
        executing(1, locked_by="w"),
        "select @schema.cancel(1, 'why'NOTIFY)",
        {"check_cancel_requests:w"},
    ),
    "retry": (ended(1, status="failed", queue="q"), "select * from @schema.retry(1NOTIFY)", {"queue:q"}),
}


@pytest.mark.parametrize("call", CALLS)
def test_plain_sql_wakes_the_workers_with_its_commit(store: Store, notified: Notified, call: str) -> None:
    given, statement, payloads = CALLS[call]
    if given:
        store.given(given)
    found = notified(statement.replace("NOTIFY", ""))
    assert len(found) == len(payloads)
    assert set(found) == payloads


@pytest.mark.parametrize("call", CALLS)
def test_plain_sql_may_leave_the_workers_to_their_polling(store: Store, notified: Notified, call: str) -> None:
    given, statement, _ = CALLS[call]
    if given:
        store.given(given)
    assert notified(statement.replace("NOTIFY", ", notify => false")) == []


@pytest.mark.parametrize("call", ["set", "remove"])
@pytest.mark.parametrize("notify", [True, False])
def test_a_changed_limit_wakes_the_workers_of_unblocked_rows(
    store: Store, notified: Notified, call: str, *, notify: bool
) -> None:
    store.run(store.calls.set_limit("l", Concurrency(1), declared=False))
    store.insert(*[Start(M.s, {}, queue="q", limit="l")] * 2)
    store.pick(q=2)
    option = "" if notify else ", notify => false"
    statement = {
        "set": f"select * from @schema.set_limit('l', 'concurrency', 2, null, null, null{option})",
        "remove": f"select * from @schema.remove_limit('l'{option})",
    }[call]
    assert notified(statement) == (["queue:q"] if notify else [])


def test_a_call_that_wakes_nothing_sends_nothing(store: Store, notified: Notified) -> None:
    store.given(executing(1) + ended(2))
    assert notified("select @schema.signal(1, 'go'), @schema.signal(99, 'go'), @schema.cancel(2, 'why')") == []
    assert notified("select * from @schema.retry(2)") == []


def test_the_statements_of_the_clients_do_not_notify(dsn: str, schema: str, store: Store, notified: Notified) -> None:
    """They would serialize the commits of all clients."""
    store.given(parked(1) + ended(2, status="failed") + instance(3))
    calls: list[Any] = [
        store.calls.insert([Start(M.s, {})], "raise"),
        store.calls.signal([OutgoingSignal(1, None, "go", None, None)]),
        store.calls.cancel([(3, None)], "why", cascade=True),
        store.reads.retry(2, None),
        store.calls.set_limit("l", Concurrency(1), declared=False),
        store.calls.remove_limit("l"),
    ]
    (allocated,) = store.run(store.calls.allocate_ids(1))
    calls.append(store.calls.insert_with_ids(calls[0], [allocated], ["{}"], []))
    for call in calls:
        store.run(call)
    assert notified("select 1") == []


@job
async def echo(number: int) -> int:
    return number


async def test_a_worker_begins_what_plain_sql_inserts_at_once(dsn: str, schema: str) -> None:
    """It does not poll here."""
    hour = timedelta(hours=1)
    async with (
        Durable(dsn, schema=schema) as app,
        Worker(app, jobs=[echo], poll_interval=hour, max_poll_interval=hour),
    ):
        assert services_of(app).notifier.listener is not None
        await services_of(app).notifier.listener.listening.wait()
        connection = await asyncpg.connect(dsn)
        found = await connection.fetchval(
            f"select id from {schema}.insert('{{echo}}', '{{1}}', '{{run}}', array['7'::jsonb], '{{default}}', '{{}}',"
            " '{}', '{}', '{}', '{}', '{}')"
        )
        await connection.close()
        assert await app.handle(found, echo).result(timeout=5) == 7
