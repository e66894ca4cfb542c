"""The doctor of an installation with roles: every difference from what `migrate --roles` makes, one at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.support.roles import PASSWORD, login_dsn, make_roles
from typer.testing import CliRunner

from gen_durable.cli.app import app as cli
from gen_durable.invariant_checker import check_roles
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import ROLES, Schema

# What is planted, what undoes it, and the words that the doctor has for it. `@` stands for the schema and the prefix of
# the roles, `@_evil` for another schema.
PLANTED = [
    (
        "alter table @.signals owner to current_user",
        "alter table @.signals owner to @_owner",
        "table @.signals belongs",
    ),
    (
        "alter type @.durable_status owner to current_user",
        "alter type @.durable_status owner to @_owner",
        "type @.durable_status belongs to",
    ),
    (
        "alter function @.session_login() owner to current_user",
        "alter function @.session_login() owner to @_owner",
        "function @.session_login() belongs to",
    ),
    (
        "alter function @.allocate_ids(int) security invoker",
        "alter function @.allocate_ids(int) security definer",
        "allocate_ids(integer) does not run with the rights",
    ),
    (
        "alter function @.allocate_ids(int) reset search_path",
        "alter function @.allocate_ids(int) set search_path = pg_catalog, pg_temp",
        "allocate_ids(integer) has no pinned search_path",
    ),
    (
        "revoke execute on function @.pick from @_worker",
        "grant execute on function @.pick to @_worker",
        "@_worker may not execute the function @.pick",
    ),
    (
        "revoke usage on schema @ from @_producer",
        "grant usage on schema @ to @_producer",
        "@_producer may not use the schema",
    ),
    (
        "comment on role @_viewer is null",
        "comment on role @_viewer is 'gen_durable: schema @ of database postgres'",
        "role @_viewer is not marked",
    ),
    ("alter role @_viewer login", "alter role @_viewer nologin", "role @_viewer can log in"),
    (
        "create rule planted as on delete to @.signals do instead nothing",
        "drop rule planted on @.signals",
        "rule planted on table @.signals is not gen_durable's",
    ),
    (
        "create policy planted on @.instances using (true)",
        "drop policy planted on @.instances",
        "policy planted on table @.instances is not gen_durable's",
    ),
    (
        "alter table @.instances enable row level security",
        "alter table @.instances disable row level security",
        "row level security of table @.instances is not gen_durable's",
    ),
    (
        "create index planted on @.instances (abs(weight))",
        "drop index @.planted",
        "index @.planted is not gen_durable's",
    ),
    (
        "alter table @.limits add constraint planted check (@_evil.f(slots) = 1)",
        "alter table @.limits drop constraint planted",
        "constraint planted on table @.limits is not gen_durable's",
    ),
    (
        "alter table @.limits alter column slots set default @_evil.f(1)",
        "alter table @.limits alter column slots drop default",
        "default value for column slots of table @.limits is not gen_durable's",
    ),
    (
        "create trigger planted before insert on @.instances for each row execute function @_evil.t()",
        "drop trigger planted on @.instances",
        "trigger planted on table @.instances is not gen_durable's",
    ),
    (
        "create table @_evil.planted () inherits (@.instances)",
        "drop table @_evil.planted",
        "table @_evil.planted is not gen_durable's",
    ),
    (
        "create table @_evil.planted (id bigint references @.instances)",
        "drop table @_evil.planted",
        "constraint planted_id_fkey on table @_evil.planted is not gen_durable's",
    ),
    (
        "create statistics @_evil.planted on (weight + 1), id from @.instances",
        "drop statistics @_evil.planted",
        "statistics object @_evil.planted is not gen_durable's",
    ),
    (
        "create cast (@.durable_status as int) with function @_evil.c(@.durable_status)",
        "drop cast (@.durable_status as int)",
        "cast from @.durable_status to integer is not gen_durable's",
    ),
    # Owned by the right owner, so that it is only its presence that differs.
    *(
        (
            f"set role @_owner; create {kind} @.planted{rest}; reset role",
            f"drop {kind} @.planted",
            f"{found} is not gen",
        )
        for kind, rest, found in (
            ("table", " (n int)", "table @.planted"),
            ("view", " as select 1 as n", "view @.planted"),
            ("materialized view", " as select 1 as n", "materialized view @.planted"),
            ("sequence", "", "sequence @.planted"),
            ("type", " as enum ('a')", "type @.planted"),
            ("domain", " as int", "type @.planted"),
            ("function", "() returns int language sql as 'select 1'", "function @.planted()"),
            ("procedure", "() language sql as 'select 1'", "function @.planted()"),
        )
    ),
    # Grants, each undone by a revoke of the same.
    *(
        (f"grant {right} to {grantee}", f"revoke {right.removesuffix(' with grant option')} from {grantee}", found)
        for right, grantee, found in (
            ("execute on function @.session_login()", "public", "public may execute the function @.session_login()"),
            (
                "execute on function @.retry(bigint, bytea, boolean)",
                "@_client",
                "@_client may execute the function @.retry",
            ),
            ("create on schema @", "@_client", "@_client may create the schema @"),
            ("usage on schema @", "public", "public may usage the schema @"),
            ("usage on type @.durable_status", "@_client", "@_client may usage the type @.durable_status"),
            ("insert on @.instances", "@_worker", "@_worker may insert the table @.instances"),
            ("update (state) on @.instances", "@_admin", "@_admin may update the column @.instances.state"),
            ("usage on sequence @.instances_id_seq", "@_client", "@_client may usage the sequence @.instances_id_seq"),
            (
                "select on sequence @.instances_id_seq",
                "@_reader",
                "@_reader may select the sequence @.instances_id_seq",
            ),
            ("select on @.instances", "public", "public may select the table @.instances"),
            ("select (state) on @.instances", "@_viewer", "@_viewer may select the column @.instances.state"),
            ("select (error) on @.step_status", "@_viewer", "@_viewer may select the column @.step_status.error"),
            ("select on @.instances", "@_producer", "@_producer may select the table @.instances"),
            ("select (id) on @.instances", "@_client", "@_client may select the column @.instances.id"),
        )
    ),
    # A revoke from the table takes the rights on its columns along, so the undoing statement grants those again.
    (
        "grant select on @.signals to @_viewer",
        "revoke select on @.signals from @_viewer; grant select (@signals) on @.signals to @_viewer",
        "@_viewer may select the table @.signals",
    ),
    (
        "grant select on @.instances to @_reader with grant option",
        "revoke grant option for select on @.instances from @_reader",
        "@_reader may select the table @.instances",
    ),
    # Missing grants of SELECT, each undone by a grant of the same.
    *(
        (f"revoke {right} from {grantee}", f"grant {right} to {grantee}", found)
        for right, grantee, found in (
            ("select on @.signals", "@_reader", "@_reader may not read the table @.signals"),
            ("select on @.step_status", "@_worker", "@_worker may not read the table @.step_status"),
            ("select on @.installation", "@_producer", "@_producer may not read the table @.installation"),
            ("select on @.migrations", "@_client", "@_client may not read the table @.migrations"),
            ("select (queue) on @.instances", "@_viewer", "@_viewer may not read the column @.instances.queue"),
        )
    ),
]
# Differences that hide others, or are hidden by them.
PLANTED_ALONE = [
    ("alter schema @ owner to current_user", "alter schema @ owner to @_owner", "schema @ belongs to"),
    (
        "alter function @.allocate_ids(int) set search_path = public",
        "alter function @.allocate_ids(int) set search_path = pg_catalog, pg_temp",
        "allocate_ids(integer) has no pinned search_path",
    ),
    ("alter role @_viewer rename to @_moved", "alter role @_moved rename to @_viewer", "role @_viewer does not exist"),
]
EVIL = """
create schema @_evil;
create function @_evil.f(int) returns int immutable language sql as 'select 1';
create function @_evil.t() returns trigger language plpgsql as 'begin return new; end';
create function @_evil.c(@.durable_status) returns int immutable language sql as 'select 1';
"""
VIEWERS_COLUMNS = """
select string_agg(quote_ident(attname), ', ') from pg_attribute
where attrelid = '@.signals'::regclass and attnum > 0 and attname <> 'payload'
"""


@pytest.fixture
def with_roles(dsn: str, schema: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of a superuser to a schema with roles."""
    asyncio.run(make_roles(dsn, schema, schema))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(EVIL.replace("@", schema))
        try:
            yield connection
        finally:
            connection.execute(f"drop schema {schema}_evil cascade")
            connection.execute(f"reassign owned by {schema}_owner to current_user")
            for role in ROLES:
                connection.execute(f"drop owned by {schema}_{role}")
                connection.execute(f"drop role {schema}_{role}")


async def missed_findings(dsn: str, schema: str, admin: psycopg.Connection[Any]) -> list[tuple[str, str, list[str]]]:
    """Plant differences, then undo them. Returns those that were not named, and what is found afterwards."""
    link = PersistentConnection(ConnectionTarget(dsn))

    async def find() -> list[str]:
        found = await check_roles(link, Schema(schema), show=1000)
        assert found is not None
        return [violation.problem for violation in found.first]

    ((columns,),) = admin.execute(VIEWERS_COLUMNS.replace("@", schema)).fetchall()
    missed: list[tuple[str, str, list[str]]] = []
    try:
        assert await find() == []
        for cases in (PLANTED, *([case] for case in PLANTED_ALONE)):
            # Each case has objects of its own.
            own = [[part.replace("planted", f"planted{n}") for part in case] for n, case in enumerate(cases)]
            for plant, _, _ in own:
                admin.execute(plant.replace("@", schema))
            problems = await find()
            for plant, _, words in own:
                if not any(words.replace("@", schema) in problem for problem in problems):
                    missed.append(("not named", plant, problems))
            # The columns of a table with a wrong owner are not listed beside it.
            assert [one for one in problems if one.startswith("column") and "belongs to" in one] == []
            for _, undo, _ in reversed(own):
                admin.execute(undo.replace("@signals", columns).replace("@", schema))
            if problems := await find():
                missed.append(("not gone", str(len(cases)), problems))
    finally:
        await link.close()
    return missed


@pytest.mark.direct(reason="creates roles")
@pytest.mark.dirty
def test_the_doctor_names_what_differs(dsn: str, schema: str, with_roles: psycopg.Connection[Any]) -> None:
    """A fresh installation is clean; each planted difference is named, and all are gone after they are undone."""
    assert asyncio.run(missed_findings(dsn, schema, with_roles)) == []
    with_roles.execute(f"revoke usage on schema {schema} from {schema}_producer")
    done = CliRunner().invoke(cli, ["doctor", "--json", "--dsn", dsn, "--schema", schema])
    assert done.exit_code == 1
    (roles,) = [finding for finding in json.loads(done.output) if finding["check"] == "roles"]
    assert "gen-durable migrate --roles" in roles["meaning"]
    assert (roles["count"], len(roles["rows"])) == (1, 1)


@pytest.mark.direct(reason="creates roles")
@pytest.mark.dirty
def test_the_doctor_advises_on_members_of_the_owner(dsn: str, schema: str, with_roles: psycopg.Connection[Any]) -> None:
    """Logins with the rights of the owner, through other roles too, but not the one that asks. It is no violation."""
    names = {name: f"{schema}_{name}" for name in ("direct", "through", "group", "super", "asks", "other")}
    for name, login in names.items():
        options = {"group": "nologin", "super": "login superuser"}.get(name, f"login password '{PASSWORD}'")
        with_roles.execute(f"create role {login} {options}")
    try:
        doctor = ["doctor", "--dsn", login_dsn(dsn, names["asks"]), "--schema", schema]
        with_roles.execute(f"grant {schema}_owner to {names['asks']}, {names['super']}, {names['group']}")
        with_roles.execute(f"grant {schema}_admin to {names['other']}")
        done = CliRunner().invoke(cli, doctor)
        assert (done.exit_code, "advice" in done.output) == (0, False), done.output
        with_roles.execute(f"grant {schema}_owner to {names['direct']}; grant {names['group']} to {names['through']}")
        done = CliRunner().invoke(cli, [*doctor, "--json"])
        assert done.exit_code == 0, done.output
        (advice,) = [finding for finding in json.loads(done.output) if "advice" in finding]
        words = f"is a member of {schema}_owner and may do everything in the schema"
        assert advice["advice"] == [f"login {names['direct']} {words}", f"login {names['through']} {words}"]
        shown = " ".join(CliRunner().invoke(cli, doctor).output.split())  # a narrow terminal breaks lines
        assert f"revoke {schema}_owner from LOGIN" in shown
        assert all(line in shown for line in advice["advice"])
        with_roles.execute(f"revoke {schema}_owner from {names['direct']}, {names['group']}")
        assert "advice" not in CliRunner().invoke(cli, doctor).output
    finally:
        for name in names.values():
            with_roles.execute(f"drop role {name}")


def test_without_roles_there_is_nothing_to_check(dsn: str, schema: str) -> None:
    done = CliRunner().invoke(cli, ["doctor", "--json", "--dsn", dsn, "--schema", schema])
    assert "roles" not in [finding["check"] for finding in json.loads(done.output)]
