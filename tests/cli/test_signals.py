"""`signals`: list, restore and delete."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.support.rows import LIVE, ended, parked, signal

from gen_durable.store.schema import Schema

Command = Callable[..., Any]
REJECTED = {"consumed": True, "rejection": "does not fit", "rejected_by": ["old"]}
ROWS = (
    parked(1, unique_key=b"order:1", unique_scope=LIVE)
    + ended(2)
    + signal(6, 1, "other", payload='"secret"', size=8)
    + signal(7, 1, payload='"x"', size=3, dedup_key="d", **REJECTED)
    + signal(8, 2, payload="1", size=1)
    + signal(9, 1, consumed=True, dedup_key="e")
)


@pytest.fixture
def command(run: Any, dsn: str, schema: str) -> Command:
    """Run a command on this test's schema."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(Schema(schema).render(ROWS).encode())
    return lambda *arguments: run("signals", *arguments, "--dsn", dsn, "--schema", schema)


def test_the_signals_of_an_instance(command: Command) -> None:
    """No payload, unless it is asked for."""
    done = command("1")
    assert done.returncode == 0, done.stderr
    states = [(line.split()[0], line.split()[4]) for line in done.stdout.splitlines()[1:]]
    assert states == [("6", "waiting"), ("7", "rejected"), ("9", "consumed")]
    assert "does not fit" in done.stdout
    assert "secret" not in done.stdout
    assert "secret" in command("--key", "order:1", "--payloads").stdout
    assert "never read" in command("2").stdout


def test_as_json(command: Command) -> None:
    (found,) = json.loads(command("--rejected", "--json").stdout)
    del found["inserted_at"]
    assert found == {
        "id": 7,
        "instance": 1,
        "machine": "m",
        "name": "go",
        "state": "rejected",
        "size": 3,
        "dedup_key": "d",
        "reason": "does not fit",
    }
    assert [one["id"] for one in json.loads(command("1", "--rejected", "--json").stdout)] == [7]
    assert json.loads(command("--rejected", "--json", "--payloads").stdout)[0]["payload"] == "x"


def test_restore(command: Command, run: Any, dsn: str, schema: str) -> None:
    done = command("restore", "7", "8", "99")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "signal 7 restored",
        "signal 8 is not rejected",
        "signal 99 does not exist",
    ]
    shown = json.loads(run("show", "1", "--json", "--dsn", dsn, "--schema", schema).stdout)
    assert shown["status"] == "runnable"
    assert [one["state"] for one in shown["signals"]] == ["waiting", "waiting"]
    assert command("restore", "7").returncode == 1


def test_a_taken_dedup_key_is_named(command: Command, run: Any, dsn: str, schema: str) -> None:
    sent = run("signal", "1", "go", "2", "--dedup-key", "d", "--dsn", dsn, "--schema", schema)
    assert "delivered" in sent.stderr
    done = command("restore", "7")
    assert (done.returncode, done.stderr.strip()) == (
        1,
        "signal 7 stays rejected, because another signal has its dedup key now",
    )


def test_rm(command: Command) -> None:
    assert command("rm", "1", "--name", "other").stderr.strip() == "1 signals deleted"
    assert command("rm", "--key", "order:1").stderr.strip() == "1 signals deleted"
    assert [one["state"] for one in json.loads(command("1", "--json").stdout)] == ["consumed"]


@pytest.mark.parametrize("arguments", [(), ("x",), ("restore",), ("restore", "x"), ("1", "2"), ("rm", "1", "2")])
def test_mistakes(command: Command, arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert "Write `signals ID`" in done.stderr


def test_an_unknown_instance(command: Command) -> None:
    assert command("99").returncode == 1
    assert command("rm", "99").returncode == 1


def test_show_lists_what_was_never_read(command: Command, run: Any, dsn: str, schema: str) -> None:
    done = run("show", "2", "--dsn", dsn, "--schema", schema)
    assert "1 never read (go)" in done.stdout
    done = run("show", "1", "--dsn", dsn, "--schema", schema)
    assert "1 waiting (other), 1 rejected (go)" in done.stdout
