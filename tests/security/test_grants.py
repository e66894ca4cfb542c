"""Grants: a login inserts what they allow and nothing else, by every call that starts an instance."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.support.canaries import Crowd, Secret, leaf, told
from tests.support.engine import BRIEF, opened
from tests.support.machine import M
from tests.support.roles import PASSWORD, login_dsn, logins, make_roles
from typer.testing import CliRunner

from gen_durable import Durable, Finished, Start, SyncDurable
from gen_durable.cli.app import app as cli
from gen_durable.errors import DatabaseRefused

Command = Callable[..., Any]


@pytest.fixture
def dsns(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, schema) as found:
        yield found


@pytest.fixture
def command(dsn: str, schema: str) -> Command:
    def run(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(cli, [*words, "--dsn", dsn, "--schema", schema])
        assert done.exit_code == code, done.output
        return done.output

    return run


def start(machine: str = "Checkout", queue: str = "checkout", priority: int = 0) -> str:
    return json.dumps({"fsm": machine, "step": "s", "queue": queue, "priority": priority, "delay": 9})


ARRAYS = (
    "select id from @.insert(array['Checkout', {machine}], '{{1,1}}', '{{s,s}}', '{{1,1}}', "
    "array['checkout', {queue}], array[0, {priority}]::smallint[], '{{}}', '{{}}', '{{}}', '{{}}', '{{}}')"
)
ONE = "select @.insert({machine}, 's', queue => {queue}, priority => {priority})"
SIGNAL = "select @.signal_or_start('key', 'hello', 'null', {start}::jsonb)"
DEBOUNCE = "select @.debounce('key', {start}::jsonb)"
RAW_SIGNAL = "select @.signal_or_start('key'::bytea, 'hello', 'null', null, {start}::jsonb, null)"
RAW_DEBOUNCE = "select @.debounce('key'::bytea, {start}::jsonb, null, null, null)"
PATHS = (ARRAYS, ONE, SIGNAL, DEBOUNCE, RAW_SIGNAL, RAW_DEBOUNCE)


def test_every_path_and_every_grant(dsn: str, schema: str, dsns: dict[str, str], command: Command) -> None:
    """Each grant, each call that starts an instance, by a producer, by a client and after SET ROLE."""
    cases = [
        # options of the grants, then machine, queue and priority, and whether they are allowed
        ([["--machine", "Checkout", "--queue", "checkout", "--max-priority", "0"]], "Checkout", "checkout", 0, True),
        ([], "Checkout", "checkout", 5, True),
        ([], "Checkout", "checkout", -1, False),
        ([], "Checkout", "other", 0, False),
        ([], "Refund", "checkout", 0, False),
        ([["--machine", "Refund", "--max-priority", "-5"], ["--queue", "mail"]], "Refund", "anywhere", -5, True),
        ([], "Refund", "anywhere", -6, False),
        ([], "Anything", "mail", -32768, True),
        ([], "Checkout", "checkout", -1, False),
        ([["--machine", "Checkout", "--queue", "checkout"]], "Checkout", "checkout", -1, True),  # replaced
    ]
    command("grant", "producer", f"{schema}_l_producer2", "--max-priority", "-32768")  # which is of no use to others
    for role in ("producer", "client"):
        login = f"{schema}_l_{role}"
        with psycopg.connect(dsns[role]) as connection:
            for path in PATHS:  # without grants the role says it all
                assert inserted(connection, schema, path, ("Any", "any", -9)) is None
        for grants, machine, queue, priority, allowed in cases:
            for options in grants:
                command("grant", role, login, *options)
            with psycopg.connect(dsns[role]) as connection:
                for before in ("", f"set role {schema}_{role}"):
                    for path in PATHS:
                        refused = inserted(connection, schema, path, (machine, queue, priority), before)
                        assert (refused is None) is allowed, (role, grants, path, before, refused)
                        if refused is not None:
                            assert refused.sqlstate == "42501"
                            words = f"login {login} may not insert machine {machine} into queue {queue} with priority"
                            assert refused.diag.message_primary == f"{words} {priority}"
        command("revoke", role, login)
    with psycopg.connect(dsns["worker"]) as worker:  # and other logins are not restricted
        assert inserted(worker, schema, ONE, ("Any", "any", -9)) is None


def test_partition_keys(schema: str, dsns: dict[str, str], command: Command) -> None:
    """With a prefix, a login uses keys of its own or none, by every call; a debounce moves no other key either."""
    command("grant", "producer", f"{schema}_l_producer", "--machine", "Checkout", "--partition-prefix", "shop:")
    for key, allowed in (("shop:1", True), ("shop:", True), ("shop", False), ("other:1", False), (None, True)):
        started = {"fsm": "Checkout", "step": "s"} | ({} if key is None else {"partition_key": key})
        given = f"'{json.dumps(started)}'::jsonb"
        quoted = "null" if key is None else f"'{key}'"
        for call in (
            f"select @.insert('Checkout', 's', partition_key => {quoted})",
            f"select id from @.insert('{{Checkout,Checkout}}', '{{1,1}}', '{{s,s}}', '{{1,1}}', '{{q,q}}', '{{}}', "
            f"array[null, {quoted}], '{{}}', '{{}}', '{{}}', '{{}}')",
            SIGNAL.format(start=given.removesuffix("::jsonb")),
            RAW_DEBOUNCE.format(start=given.removesuffix("::jsonb")),
        ):
            with psycopg.connect(dsns["producer"]) as connection:
                words = f"with priority 0 and partition key '{key}'"
                refused = pytest.raises(psycopg.errors.InsufficientPrivilege, match=words)
                with nullcontext() if allowed else refused:
                    connection.execute(call.replace("@", f'"{schema}"').encode())
                connection.rollback()
    assert '"partition_prefix": "shop:"' in command("grants", "--json")


def inserted(
    connection: psycopg.Connection[Any], schema: str, path: str, start_of: tuple[str, str, int], before: str = ""
) -> psycopg.Error | None:
    """The error of an insert, which is rolled back."""
    machine, queue, priority = start_of
    given = f"'{start(machine, queue, priority)}'"
    call = path.format(machine=f"'{machine}'", queue=f"'{queue}'", priority=priority, start=given)
    try:
        if before:
            connection.execute(before.encode())
        connection.execute(call.replace("@", f'"{schema}"').encode())
    except psycopg.Error as error:
        return error
    finally:
        connection.rollback()
    return None


def test_a_debounce_of_a_waiting_instance(schema: str, dsns: dict[str, str], command: Command) -> None:
    """Its machine, queue and priority count, whatever the call names: a client may name instances of others."""
    with psycopg.connect(dsns["worker"], autocommit=True) as worker:
        worker.execute(f"select \"{schema}\".debounce('key', '{start(priority=-3)}')".encode())
    login = f"{schema}_l_client"
    for options, allowed in (
        (["--queue", "elsewhere"], False),
        (["--queue", "checkout", "--max-priority", "-3"], True),
    ):
        command("grant", "client", login, *options)
        with psycopg.connect(dsns["client"], autocommit=True) as client:
            call = f"select \"{schema}\".debounce('key', '{start(queue='elsewhere', priority=0)}')".encode()
            if allowed:
                assert client.execute(call).fetchone() is not None
            else:
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="queue checkout with priority -3"):
                    client.execute(call)


async def test_the_client_says_what_is_refused(schema: str, dsns: dict[str, str], command: Command) -> None:
    """In Python all calls raise `DatabaseRefused` with login, machine, queue, priority and what to do."""
    login = f"{schema}_l_producer"
    await asyncio.to_thread(command, "grant", "producer", login, "--machine", "Other")
    words = rf"login {login} may not insert machine m into queue default with priority 0. gen-durable grants lists"
    async with Durable(dsns["producer"], schema=schema) as app:
        own = await asyncpg.connect(dsns["producer"])
        for call in (
            app.insert(M.s, {}),
            app.insert_many([Start(M.s, {})] * 3),
            app.signal("key", told, Secret("x"), or_start=Start(M.s, {}, unique_key="key")),
            app.debounce(M.s, {}, unique_key="key", delay=9),
        ):
            with pytest.raises(DatabaseRefused, match=words):
                await call
        with pytest.raises(DatabaseRefused, match=words):
            async with own.transaction():
                await app.insert(M.s, {}, connection=own)
        await own.close()
    with (
        SyncDurable(dsns["producer"], schema=schema) as sync,
        psycopg.connect(dsns["producer"]) as mine,
        pytest.raises(DatabaseRefused, match=words),
    ):
        sync.insert(M.s, {}, connection=mine)


async def test_signals_cancels_and_children_are_not_restricted(
    schema: str, dsns: dict[str, str], command: Command
) -> None:
    """A grant is about inserts: the login names existing instances as before, and workers start what they like."""
    async with opened(dsns["producer"], schema) as mine, opened(dsns["worker"], schema) as e:
        one = await mine.app.insert(M.s, {}, unique_key="key")
        await asyncio.to_thread(command, "grant", "producer", f"{schema}_l_producer", "--machine", "Other")
        assert await mine.app.signal(one.id, told, Secret("x"))
        assert await mine.app.signal("key", told, Secret("x"), or_start=Start(M.s, {}, unique_key="key"))
        assert await mine.app.cancel(one.id)
        await asyncio.to_thread(command, "grant", "producer", f"{schema}_l_producer", "--machine", "Crowd")
        crowd = await mine.app.insert(Crowd.spread, 3)
        async with e.worker(Crowd(), leaf, **BRIEF):
            assert await mine.end(crowd) == Finished(crowd.id, 3)


def test_a_renamed_login_keeps_its_grants(dsn: str, schema: str, dsns: dict[str, str], command: Command) -> None:
    """And a new login with the old name gets none."""
    old, new = f"{schema}_l_producer", f"{schema}_l_renamed"
    command("grant", "producer", old, "--machine", "Checkout")
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"alter role {old} rename to {new}; alter role {new} password '{PASSWORD}'".encode())
        admin.execute(f"create role {old} login password '{PASSWORD}'; grant {schema}_producer to {old}".encode())
        try:
            with psycopg.connect(login_dsn(dsn, new)) as renamed, psycopg.connect(login_dsn(dsn, old)) as other:
                assert inserted(renamed, schema, ONE, ("Refund", "x", 0)) is not None
                assert inserted(other, schema, ONE, ("Refund", "x", 0)) is None
            assert new in command("grants")
        finally:
            admin.execute(f"drop role {old}; alter role {new} rename to {old}".encode())


def test_a_dropped_login_leaves_no_grants(dsn: str, schema: str, dsns: dict[str, str], command: Command) -> None:
    """`grants` shows them, `migrate --roles` deletes them: another role may get the number."""
    login = f"{schema}_l_gone"
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"create role {login} login".encode())
        command("grant", "producer", login, "--machine", "Checkout")
        command("grant", "producer", f"{schema}_l_producer", "--machine", "Checkout")
        admin.execute(f"drop role {login}".encode())
        found = json.loads(command("grants", "--json"))
        assert [one["problem"] for one in found if one["login"] == login] == [
            "the login no longer exists: gen-durable migrate --roles deletes its grants"
        ]
        asyncio.run(make_roles(dsn, schema, schema))  # without a repair nothing is to do
        assert len(json.loads(command("grants", "--json"))) == 2
        CliRunner().invoke(cli, ["migrate", "--roles", "--dsn", dsn, "--schema", schema])
        assert [one["login"] for one in json.loads(command("grants", "--json"))] == [f"{schema}_l_producer"]
