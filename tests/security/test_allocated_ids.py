"""Ids that a client with a codec draws: no other login uses them, and a client that loses them draws again."""

from __future__ import annotations

import secrets
from typing import Any

import asyncpg
import psycopg
import pytest
from tests.support.canaries import Secret, Waiter, echo, told
from tests.support.engine import Opening
from tests.support.roles import logins

from gen_durable import Start
from gen_durable.contrib.aes import AesGcm
from gen_durable.core.services import services_of
from gen_durable.encryption import PayloadContext
from gen_durable.errors import DatabaseRefused
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.store.statements import Statement

KEY = AesGcm({"k1": secrets.token_bytes(32)})
INSERT = (
    "select id from {}.insert('{{a}}','{{1}}','{{s}}',array['{{}}'::jsonb],'{{q}}','{{}}','{{}}','{{}}','{{}}','{{}}',"
    "'{{}}',allocated_ids => array[{}])"
)
SIGNAL_OR_START = "select * from {}.signal_or_start('\\x01'::bytea, 'go', '1', null, '{}', null)"
DEBOUNCE = "select * from {}.debounce('\\x01'::bytea, '{}', null, null, null)"
START = '{"fsm": "a", "step": "s", "id": %d}'


class Thief:
    """A codec during whose work the ids that were drawn are lost, so many times."""

    def __init__(self, dsn: str, schema: str, times: int) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._sql = f"delete from {schema}.allocated_ids"
        self.times = times

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        if self.times:
            self.times -= 1
            self._connection.execute(self._sql)
        return KEY.encode(data, context)

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        return KEY.decode(data, context)

    def close(self) -> None:
        self._connection.close()


@pytest.mark.direct(reason="logins of its own")
def test_an_id_is_used_by_the_login_that_drew_it(dsn: str, schema: str) -> None:
    """Whatever another login may do; and its attempts take nothing from the login that drew the id."""
    with logins(dsn, schema) as dsns, psycopg.connect(dsns["producer"], autocommit=True) as own:
        (drawn,) = own.execute(f"select {schema}.allocate_ids(3)").fetchone() or ()
        for other in ("producer2", "client", "worker", "admin"):
            with psycopg.connect(dsns[other], autocommit=True) as stranger:
                for call in (
                    INSERT.format(schema, drawn[0]),
                    SIGNAL_OR_START.format(schema, START % drawn[1]),
                    DEBOUNCE.format(schema, START % drawn[2]),
                ):
                    with pytest.raises(psycopg.Error, match="not drawn by this login") as refused:
                        stranger.execute(call)
                    assert refused.value.sqlstate == "GD008"
        with psycopg.connect(dsns["client"], autocommit=True) as stranger:
            # The key has a holder, so the call needs no id, and gives up none that is not its own.
            stranger.execute(f"select {schema}.insert('another', 's', unique_key => 'held')")
            held = DEBOUNCE.format(schema, START % drawn[0]).replace("\\x01", "held")
            assert (stranger.execute(held).fetchone() or ())[1] == "taken"
        assert own.execute(INSERT.format(schema, drawn[0])).fetchone() == (drawn[0],)
        assert own.execute(SIGNAL_OR_START.format(schema, START % drawn[1])).fetchone() is not None
        # No login writes ids into the list by itself.
        for login in ("producer", "worker", "admin"):
            with psycopg.connect(dsns[login], autocommit=True) as stranger:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    stranger.execute(f"insert into {schema}.allocated_ids (id) values (1)")
                for hidden in ("use_up_allocated_ids('{1}')", "draw_unused_ids(1)", "discard_allocated_id('{}')"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        stranger.execute(f"select {schema}.{hidden}")


@pytest.mark.parametrize("losses", [0, 1, 2])
async def test_a_client_that_loses_its_ids_draws_again(engine: Opening, dsn: str, schema: str, losses: int) -> None:
    """It encrypts for the new ids, which decrypt; and nothing is left of ids that were not used."""
    thief = Thief(dsn, schema, 0)
    async with engine(codec=thief) as e:
        for start in (
            lambda: e.app.insert(echo, Secret("1")),
            lambda: e.app.insert_many([Start(echo, Secret("1"))]),
            lambda: e.app.signal("k", told, Secret("4"), or_start=Start(Waiter.wait, Secret("1"))),
            lambda: e.app.debounce(echo, Secret("1"), unique_key="d", delay=60),
        ):
            thief.times = losses
            made: Any = await start()
            assert thief.times == 0
            handle = made[0] if isinstance(made, list) else getattr(made, "handle", made)
            assert (await e.app.get(handle)).state == {"text": "1", "count": 0}
        assert await e.rows.fetch("select * from @.allocated_ids") == []
        if losses == 2:
            thief.times = 1000
            with pytest.raises(DatabaseRefused, match="not drawn by this login"):
                await e.app.insert(echo, Secret("1"))
            assert await e.rows.fetch("select count(*) from @.instances") == [(4,)]
    thief.close()


async def test_a_lost_answer_draws_again(engine: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try has used the ids up and committed; the second finds its rows by their keys."""
    async with engine(codec=KEY) as e:
        pool = services_of(e.app).pool
        run, answered = type(pool).run, []

        async def lose_first_answer(self: Any, statement: Statement[Any], **options: Any) -> Any:
            answer = await run(self, statement, **options)
            if ".insert(" in statement.text:
                answered.append(answer)
                if len(answered) == 1:
                    raise ConnectionLost(OSError("no answer"), sent=True)
            return answer

        monkeypatch.setattr(type(pool), "run", lose_first_answer)
        handle = await e.app.insert(echo, Secret("1"), unique_key="k", on_conflict="existing")
        assert (await e.app.get(handle)).state == {"text": "1", "count": 0}
        assert [row.id for row in answered[0]] == [row.id for row in answered[1]] == [handle.id]
        assert await e.rows.fetch("select id from @.instances") == [(handle.id,)]


async def test_a_callers_transaction_keeps_its_ids_to_itself(engine: Opening, dsn: str) -> None:
    """Drawn and used in one transaction; a rollback leaves neither row nor id."""
    async with engine(codec=KEY) as e:
        connection = await asyncpg.connect(dsn)
        transaction = connection.transaction()
        await transaction.start()
        await e.app.insert(echo, Secret("1"), connection=connection)
        await e.app.debounce(echo, Secret("1"), unique_key="d", delay=60, connection=connection)
        await transaction.rollback()
        assert await e.rows.fetch("select id from @.instances union all select id from @.allocated_ids") == []
        async with connection.transaction():
            handle = await e.app.insert(echo, Secret("2"), connection=connection)
        await connection.close()
        assert (await e.app.get(handle)).state == {"text": "2", "count": 0}
        assert await e.rows.fetch("select id from @.allocated_ids") == []


def draw(connection: psycopg.Connection[Any], schema: str) -> list[int]:
    row = connection.execute(f"select {schema}.allocate_ids(3)".encode()).fetchone()
    assert row is not None
    return list(row[0])


def restrict(admin: psycopg.Connection[Any], schema: str, login: str, quota: str) -> None:
    admin.execute(
        f"insert into {schema}.restricted_logins (login, login_name, max_live) "
        f"select oid, rolname, {quota} from pg_roles where rolname = '{schema}_l_{login}'".encode()
    )


@pytest.mark.direct(reason="logins of its own")
def test_a_login_with_a_quota_keeps_few_unused_ids(dsn: str, schema: str) -> None:
    """Those among the last million ids; logins without a quota, also with a grant, keep theirs for a day."""
    with logins(dsn, schema) as dsns, psycopg.connect(dsn, autocommit=True) as admin:
        restrict(admin, schema, "producer", "10")
        restrict(admin, schema, "producer2", "null")
        kept: list[int] = []
        for login in ("client", "producer2", "producer"):
            with psycopg.connect(dsns[login], autocommit=True) as own:
                old = draw(own, schema)
                admin.execute(f"select setval('{schema}.instances_id_seq', {old[-1]} + 900000)".encode())
                recent = draw(own, schema)
                admin.execute(f"select setval('{schema}.instances_id_seq', {old[-1]} + 1100000)".encode())
                kept += ([] if login == "producer" else old) + recent + draw(own, schema)
        rows = admin.execute(f"select id from {schema}.allocated_ids order by id".encode()).fetchall()
        assert [row[0] for row in rows] == sorted(kept)


@pytest.mark.direct(reason="logins of its own")
def test_a_draw_does_not_wait_for_an_insert(dsn: str, schema: str) -> None:
    """An open transaction has used an old id: the draw leaves it, and forgets the others."""
    with logins(dsn, schema) as dsns, psycopg.connect(dsn, autocommit=True) as admin:
        restrict(admin, schema, "producer", "10")
        with psycopg.connect(dsns["producer"], autocommit=True) as own, psycopg.connect(dsn) as using:
            old = draw(own, schema)
            admin.execute(f"select setval('{schema}.instances_id_seq', {old[-1]} + 1100000)".encode())
            using.execute(f"delete from {schema}.allocated_ids where id = {old[0]}".encode())
            own.execute("set statement_timeout = '2s'")
            new = draw(own, schema)
            using.rollback()
        rows = admin.execute(f"select id from {schema}.allocated_ids order by id".encode()).fetchall()
        assert [row[0] for row in rows] == [old[0], *new]
