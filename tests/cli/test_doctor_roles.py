"""The doctor of an installation with roles: every difference from what `migrate --roles` makes, one at a time."""

from __future__ import annotations

import asyncio
import json

import psycopg
import pytest
from tests.support.roles import make_roles
from typer.testing import CliRunner

from gen_durable.cli.app import app as cli
from gen_durable.invariant_checker import check_roles
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema

# What is planted, and the words that the doctor has for it. `@` stands for the schema and the prefix of the roles.
PLANTED = [
    ("alter table @.signals owner to current_user", "table @.signals belongs to"),
    ("alter schema @ owner to current_user", "schema @ belongs to"),
    ("alter type @.durable_status owner to current_user", "type @.durable_status belongs to"),
    ("alter function @.session_login() owner to current_user", "function @.session_login() belongs to"),
    ("alter function @.allocate_ids(int) security invoker", "allocate_ids(integer) does not run with the rights"),
    ("alter function @.allocate_ids(int) reset search_path", "allocate_ids(integer) has no pinned search_path"),
    ("alter function @.allocate_ids(int) set search_path = public", "allocate_ids(integer) has no pinned search_path"),
    ("grant execute on function @.session_login() to public", "public may execute the function @.session_login()"),
    ("grant create on schema @ to @_client", "@_client may create the schema @"),
    ("grant usage on schema @ to public", "public may usage the schema @"),
    ("grant insert on @.instances to @_worker", "@_worker may insert the table @.instances"),
    ("grant update (state) on @.instances to @_admin", "@_admin may update the column of table @.instances"),
    ("grant usage on sequence @.instances_id_seq to @_client", "@_client may usage the table @.instances_id_seq"),
    ("grant select on @.instances to @_reader with grant option", "@_reader may select the table @.instances"),
    (
        "grant execute on function @.retry(bigint, bytea, boolean) to @_client",
        "@_client may execute the function @.retry",
    ),
    ("revoke execute on function @.pick from @_worker", "@_worker may not execute the function @.pick"),
    ("revoke usage on schema @ from @_producer", "@_producer may not use the schema"),
    ("revoke select on @.signals from @_reader", "@_reader may not read @.signals"),
    ("create table @.planted (n int)", "table @.planted is not gen_durable"),
    ("create function @.planted() returns int language sql as 'select 1'", "function @.planted() is not gen_durable"),
    ("comment on role @_viewer is null", "role @_viewer is not marked"),
    ("alter role @_viewer login", "role @_viewer can log in"),
]


@pytest.mark.direct(reason="creates roles")
@pytest.mark.dirty
def test_the_doctor_names_what_differs(dsn: str, schema: str) -> None:
    """A fresh installation is clean; each planted difference is one finding, which is gone after it is undone."""

    async def find() -> list[str]:
        link = PersistentConnection(ConnectionTarget(dsn))
        try:
            found = await check_roles(link, Schema(schema), show=1000)
            assert found is not None
            return [violation.problem for violation in found.first]
        finally:
            await link.close()

    asyncio.run(make_roles(dsn, schema, schema))
    doctor = ["doctor", "--json", "--dsn", dsn, "--schema", schema]
    with psycopg.connect(dsn, autocommit=True) as connection:
        try:
            assert asyncio.run(find()) == []
            missed = []
            for sql, words in PLANTED:
                connection.execute(sql.replace("@", schema))
                problems = asyncio.run(find())
                if not any(words.replace("@", schema) in problem for problem in problems):
                    missed.append((sql, problems))
            assert missed == []
            done = CliRunner().invoke(cli, doctor)
            assert done.exit_code == 1
            (roles,) = [finding for finding in json.loads(done.output) if finding["check"] == "roles"]
            assert "gen-durable migrate --roles" in roles["meaning"]
            assert roles["count"] >= len(PLANTED) - 2
        finally:
            connection.execute(f"reassign owned by {schema}_owner to current_user")
            for role in ("owner", "worker", "client", "producer", "reader", "viewer", "admin"):
                connection.execute(f"drop owned by {schema}_{role}")
                connection.execute(f"drop role {schema}_{role}")


def test_without_roles_there_is_nothing_to_check(dsn: str, schema: str) -> None:
    done = CliRunner().invoke(cli, ["doctor", "--json", "--dsn", dsn, "--schema", schema])
    assert "roles" not in [finding["check"] for finding in json.loads(done.output)]
