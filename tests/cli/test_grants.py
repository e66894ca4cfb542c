"""`gen-durable grant`, `revoke` and `grants`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.support.roles import GROUPS, PASSWORD, login_dsn, logins
from typer.testing import CliRunner

from gen_durable.cli.app import app as cli

Run = Callable[..., str]
INDEX = "select indisvalid from pg_index where indexrelid = to_regclass(%s)"


def runner(dsn: str, schema: str) -> Run:
    def run(words: str, code: int = 0) -> str:
        options = ["--dsn", dsn, "--schema", schema]
        done = CliRunner().invoke(cli, [*words.format(s=schema).split(), *options], env={"COLUMNS": "200"})
        assert done.exit_code == code, (words, done.output)
        assert "Traceback" not in done.output
        return done.output

    return run


@pytest.fixture
def dsns(dsn: str, schema: str) -> Iterator[dict[str, str]]:
    with logins(dsn, schema) as found:
        yield found


@pytest.fixture
def run(dsn: str, schema: str, dsns: dict[str, str]) -> Run:
    return runner(dsn, schema)


@pytest.fixture
def admin(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def is_member(admin: psycopg.Connection[Any], login: str, role: str) -> bool:
    found = admin.execute("select pg_has_role(%s, %s, 'member')", [login, role]).fetchone()
    assert found is not None
    return bool(found[0])


def test_grant_list_and_revoke(run: Run, schema: str, dsns: dict[str, str], admin: psycopg.Connection[Any]) -> None:
    """Each command says all that the login may do then; the last grant goes together with the role."""
    login, role = f"{schema}_l_stranger", f"{schema}_producer"
    assert "no login is restricted" in run("grants")
    assert run("grant producer {s}_l_stranger").splitlines() == [
        f"{login}: has the role producer",
        f"{login}: may insert any machine into any queue",
    ]
    assert is_member(admin, login, role)
    assert "no login is restricted" in run("grants")  # nothing is stored for it
    run("grant producer {s}_l_stranger --machine Checkout --queue checkout --max-priority 0 --max-live 1000")
    assert run("grant producer {s}_l_stranger --queue mail --max-inserts-per-second 2.5").splitlines() == [
        f"{login}: has the role producer",
        f"{login}: may insert any machine into queue mail",
        f"{login}: may insert machine Checkout into queue checkout, priority 0 or a higher number",
        f"{login}: may have 1,000 live instances",
        f"{login}: may insert 2.5 instances a second",
    ]
    assert "has no grant for machine Refund into any queue" in run("revoke producer {s}_l_stranger --machine Refund", 1)
    (listed,) = json.loads(run("grants --json"))
    assert listed == {
        "login": login,
        "roles": ["producer"],
        "grants": [
            {"machine": None, "queue": "mail", "most_urgent": None, "partition_prefix": None},
            {"machine": "Checkout", "queue": "checkout", "most_urgent": 0, "partition_prefix": None},
        ],
        "quota": {"max_live": 1000, "inserts_per_second": 2.5},
        "problem": None,
    }
    table = [line.split() for line in runner(dsns["viewer"], schema)("grants").splitlines()]
    assert table == [
        ["login", "role", "machine", "queue", "priority", "live", "per", "second"],
        [login, "producer", "any", "mail", "any", "1,000", "2.5"],
        ["Checkout", "checkout", "from", "0"],
    ]
    assert "a second" not in run("revoke producer {s}_l_stranger --quotas")
    run("revoke producer {s}_l_stranger --queue mail")
    assert is_member(admin, login, role)
    last = run("revoke producer {s}_l_stranger --machine Checkout --queue checkout")
    assert last == f"{login}: may insert nothing\n"
    assert not is_member(admin, login, role)
    assert "no login is restricted" in run("grants")


def test_a_grant_replaces_the_same_one(run: Run) -> None:
    """For the same machine and queue, also if one of them is any."""
    for options in ("--machine M", "--queue q", "--machine M --queue q"):
        for priority in ("-1", "5"):
            said = run(f"grant producer {{s}}_l_producer {options} --max-priority {priority}")
    assert said.count("priority 5") == 3
    assert said.count("may insert") == 3


def test_the_last_grant_stays_while_the_login_may_insert(run: Run, schema: str, admin: psycopg.Connection[Any]) -> None:
    """Otherwise to revoke a grant would give a login every right of its role."""
    login = f"{schema}_l_producer"
    run("grant producer {s}_l_producer --machine Checkout")
    run("grant client {s}_l_producer")
    refused = run("revoke producer {s}_l_producer --machine Checkout", 2)
    assert f"Revoke that first: gen-durable revoke client {login}" in refused
    assert "may insert machine Checkout into any queue" in run("revoke producer {s}_l_producer")
    assert "may insert nothing" in run("revoke client {s}_l_producer")
    # A login that is a member through another role keeps its grants, too.
    admin.execute(f"create role {schema}_team; grant {schema}_producer to {schema}_team".encode())
    try:
        admin.execute(f"grant {schema}_team to {login}".encode())
        run("grant producer {s}_l_producer --machine Checkout")
        direct = "select from pg_auth_members where member = %s::regrole and roleid = %s::regrole"
        assert admin.execute(direct, [login, f"{schema}_producer"]).fetchall() == []
        for words in ("revoke producer {s}_l_producer --machine Checkout", "revoke producer {s}_l_producer"):
            assert f"is still a member of {schema}_producer, through another role" in run(words, 2)
        assert [one["login"] for one in json.loads(run("grants --json"))] == [login]
    finally:
        admin.execute(f"drop role {schema}_team".encode())


def test_what_cannot_be_restricted(run: Run, dsn: str, schema: str, dsns: dict[str, str], bare_schema: str) -> None:
    """Each refusal says what to do, and changes nothing."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["user"]
    for words, code, message in (
        ("grant producer nobody --machine M", 1, "There is no login 'nobody'. Create it first"),
        ("grant producer {s}_viewer --machine M", 2, "cannot log in. Grants hold for logins"),
        (f"grant producer {name} --machine M", 2, "is a superuser, which nothing restricts"),
        ("grant producer {s}_l_worker --machine M", 2, "is a member of {s}_worker, which may do more than insert"),
        ("grant client {s}_l_admin --machine M", 2, "is a member of {s}_admin, which may do more than insert"),
        ("grant producer {s}_l_producer --machine a/b", 2, "--machine must be 1 to 200 characters"),
        ("grant producer {s}_l_producer --max-live 0", 2, "--max-live"),
        ("grant admin {s}_l_producer", 2, "admin"),
        ("revoke producer {s}_l_producer --quotas --queue x", 2, "--quotas goes without --machine and --queue"),
    ):
        assert message.format(s=schema) in " ".join(run(words, code).split())
    assert "no login is restricted" in run("grants")
    for login in ("producer", "viewer", "worker"):
        own = runner(dsns[login], schema)
        assert "Run the command as the login that has created the roles" in own(
            "grant client {s}_l_client --queue q", 2
        )
    assert "Run the command as the login" in runner(dsns["producer"], schema)("grants", 2)
    plain = runner(dsn, bare_schema)
    assert "run `gen-durable migrate`" in plain("grants", 2)
    plain("migrate")
    for words in ("grants", f"grant producer {schema}_l_producer", f"revoke producer {schema}_l_producer"):
        assert "has no roles, so every login that can write to it may do everything" in plain(words, 2)


def test_grants_that_do_not_hold_are_shown(run: Run, schema: str, admin: psycopg.Connection[Any]) -> None:
    """For what is granted later, by SQL."""
    login = f"{schema}_l_producer"
    run("grant producer {s}_l_producer --machine Checkout")
    for change, problem in (
        (f"grant {schema}_worker to {login}", f"is a member of {schema}_worker: grants do not restrict that"),
        (f"alter role {login} superuser", "is a superuser: nothing restricts it"),
        (f"alter role {login} nosuperuser; revoke {schema}_worker, {schema}_producer from {login}", "may not insert"),
    ):
        admin.execute(change.encode())
        assert problem in run("grants")
        assert problem in json.loads(run("grants --json"))[0]["problem"]


def test_the_index_of_live_instances(run: Run, schema: str, admin: psycopg.Connection[Any]) -> None:
    """It is created with the first quota that needs it, and again if an attempt was broken off; roles accept it."""
    name = f'"{schema}".instances_live_of_login'
    run("grant producer {s}_l_producer --machine M --max-inserts-per-second 5")
    assert admin.execute(INDEX, [name]).fetchall() == []
    run("grant producer {s}_l_producer --max-live 5")
    assert admin.execute(INDEX, [name]).fetchall() == [(True,)]
    admin.execute("update pg_index set indisvalid = false where indexrelid = to_regclass(%s)", [name])
    run("grant producer {s}_l_producer --max-live 6")
    assert admin.execute(INDEX, [name]).fetchall() == [(True,)]
    assert "nothing to do" in run("migrate --roles")
    assert "may have 6 live instances" in run("grant producer {s}_l_producer")


def test_by_the_login_that_migrates(dsn: str, bare_schema: str, admin: psycopg.Connection[Any]) -> None:
    """A login with CREATEROLE that is no superuser; names are quoted; uninstall removes it all."""
    name = bare_schema
    dba, shop = f"{name}_dba", f'{name}"; drop role x; --'
    database = admin.info.dbname
    admin.execute(f"create role {dba} login createrole password '{PASSWORD}'".encode())
    admin.execute(f'grant create on database "{database}" to {dba}'.encode())
    own = runner(login_dsn(dsn, dba), name)
    try:
        own("migrate --roles")
        quoted = shop.replace('"', '""')
        admin.execute(f'create role "{quoted}" login'.encode())
        for words in (["grant", "--machine", "M", "--max-live", "5"], ["revoke", "--machine", "M"]):
            options = ["--dsn", login_dsn(dsn, dba), "--schema", name]
            done = CliRunner().invoke(cli, [words[0], "client", *words[1:], *options, "--", shop])
            assert done.exit_code == 0, done.output
        own("uninstall --roles --yes")
    finally:
        admin.execute(f'drop schema if exists "{name}" cascade'.encode())
        admin.execute(f'drop role if exists "{quoted}"'.encode())
        for role in GROUPS:
            admin.execute(f"drop role if exists {name}_{role}".encode())
        admin.execute(f"drop owned by {dba}; drop role {dba}".encode())


@pytest.mark.parametrize("is_dropped", [False, True])
def test_names_of_logins_are_data(
    run: Run, dsn: str, schema: str, admin: psycopg.Connection[Any], is_dropped: bool
) -> None:
    """Also of logins that no longer exist: their stored names are printed with escapes."""
    name = f"{schema}\x1b[31m\n\u202e[/red]"
    admin.execute(f'create role "{name}" login'.encode())
    try:
        words = ["--queue", "q", "--dsn", dsn, "--schema", schema, "--", name]
        granted = CliRunner().invoke(cli, ["grant", "producer", *words])
        assert granted.exit_code == 0, granted.output
    finally:
        if is_dropped:
            admin.execute(f'drop role "{name}"'.encode())
    try:
        for output in (granted.output, run("grants")):
            assert f"{schema}\\x1b[31m\\n\\u202e[/red]" in output
            assert "\x1b" not in output
        assert json.loads(run("grants --json"))[0]["login"] == name
        assert ("no longer exists" in run("grants")) is is_dropped
    finally:
        if not is_dropped:
            admin.execute(f'drop role "{name}"'.encode())
