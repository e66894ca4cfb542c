"""`ls`, `count`, `show`, `history`, `signal`, `cancel`, `retry`, `rm`: processes on rows of all kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.interleavings.given import LIVE, ended, executing, instance, parent, parked

from gen_durable.store.schema import Schema

Command = Callable[..., Any]
ROWS = (
    ended(1, status="failed", last_error="no\x1b[31m luck", step="pay", state='{"card": "4111"}', ago=60)
    + parked(2, unique_key=b"order:2", unique_scope=LIVE, metadata='{"tenant": "acme", "n": 7}', state='{"card": "42"}')
    + executing(3, partition_key="p")
    + parent(4, 1)
    + instance(5, parent_id=4, parent_round=1, partition_key="p", blocked_on="partition/p", queue="mail")
    + ended(6, result='{"sum": 3}')
)


@pytest.fixture
def rows(dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(Schema(schema).render(ROWS).encode())


@pytest.fixture
def command(run: Any, dsn: str, schema: str, rows: None) -> Command:
    """Run a command on this test's schema."""
    return lambda name, *arguments: run(name, *arguments, "--dsn", dsn, "--schema", schema)


def listed(command: Command, *arguments: str) -> list[int]:
    done = command("ls", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [one["id"] for one in json.loads(done.stdout)["instances"]]


def test_ls(command: Command) -> None:
    """One line to an instance: where it is, and what it waits for; never its state, and no escape sequence."""
    shown = command("ls")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["id", "machine", "step", "status", "queue", "inserted", "changed", "note"]
    assert [line.split()[0] for line in lines[1:]] == ["6", "5", "4", "3", "2", "1"]
    for words in ("blocked on partition/p", "waits for 1 children", "on w", "waits for go", "no\\x1b[31m luck"):
        assert words in shown.stdout
    assert "4111" not in shown.stdout
    assert shown.stderr == ""


def test_filters_of_ls(command: Command) -> None:
    """Every option filters, and all of them together."""
    assert listed(command, "-s", "failed", "-s", "done") == [6, 1]
    assert listed(command, "--machine", "m", "--step", "pay", "--machine-version", "1") == [1]
    assert listed(command, "--queue", "mail", "--partition-key", "p", "--parent", "4") == [5]
    assert listed(command, "--key", "order:2") == [2]
    assert listed(command, "--metadata", "tenant=acme", "--metadata", '{"n": 7}') == [2]
    assert listed(command, "--metadata", "n=7", "--inserted-after", "10m", "--updated-after", "1h") == [2]
    assert listed(command, "--finished-after", "2m", "--finished-before", "30s") == [1]
    assert listed(command, "--inserted-before", "2020-01-01") == []


def test_limit_and_after(command: Command) -> None:
    """It says how to go on."""
    first = command("ls", "-n", "4")
    assert first.stderr.startswith("there may be more: --after ")
    rest = command("ls", "--after", first.stderr.split()[-1])
    assert [line.split()[0] for line in rest.stdout.splitlines()[1:]] == ["2", "1"]
    assert command("ls", "--machine", "nobody").stderr == "no instance fits\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--inserted-after", "soon"), "is no moment"),
        (("--metadata", "tenant"), "is not of the form NAME=VALUE"),
        (("--metadata", "{x"), "is not a JSON object"),
        (("--after", "zzz"), "after must be the cursor"),
        (("--status", "gone"), "--status"),
    ],
)
def test_mistakes_of_ls(command: Command, arguments: tuple[str, ...], words: str) -> None:
    done = command("ls", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_count(command: Command) -> None:
    assert command("count").stdout == "6\n"
    assert json.loads(command("count", "-s", "failed", "--json").stdout) == {"value": 1, "exact": True}


def test_show(command: Command) -> None:
    """All facts; the state only when it is asked for."""
    shown = command("show", "1").stdout
    for words in ("m, version 1", "pay", "failed", "no\\x1b[31m luck", "--state shows it"):
        assert words in shown
    assert "4111" not in shown
    assert '"card": "4111"' in command("show", "1", "--state").stdout
    assert "awaiting_signal, waits for go" in command("show", "--key", "order:2").stdout
    assert "runnable, blocked on partition/p" in command("show", "5").stdout
    assert "children" in command("show", "4").stdout
    assert '"sum": 3' in command("show", "6", "--state").stdout
    told = json.loads(command("show", "2", "--json").stdout)
    assert (told["id"], told["unique_key"], told["metadata"]) == (2, "order:2", {"tenant": "acme", "n": 7})
    assert "state" not in told
    assert json.loads(command("show", "2", "--json", "--state").stdout)["state"] == {"card": "42"}


def test_show_what_is_not_there(command: Command) -> None:
    missing = command("show", "77")
    assert (missing.returncode, missing.stderr) == (1, "gen-durable: instance 77 is unknown\n")
    assert command("show").returncode == 2
    assert command("show", "1", "--key", "order:2").returncode == 2


def test_signal(command: Command) -> None:
    """By id or key, with a payload or none; once per dedup key; not to who has ended."""
    assert command("signal", "3", "go").stderr == "signal go: delivered\n"
    by_key = ("signal", "--key", "order:2", "go", '{"amount": 1}', "--dedup-key", "d")
    assert command(*by_key).stderr == "signal go: delivered\n"
    assert command(*by_key).stderr == "signal go: was delivered before under this dedup key\n"
    gone = command("signal", "6", "go")
    assert gone.returncode == 1
    assert "instance 6 is unknown or has ended" in gone.stderr
    for bad in (("3", "go", "{x"), ("go",), ("3", "go", "1", "2"), ("3",)):
        assert command("signal", *bad).returncode == 2


def test_cancel(command: Command) -> None:
    """What waits ends, with its children; what executes is asked; what has ended is refused."""
    assert (
        command("cancel", "4", "--reason", "enough").stderr
        == "instance 4: 2 cancelled, 0 executing and asked to stop\n"
    )
    assert command("cancel", "3").stderr == "instance 3: 0 cancelled, 1 executing and asked to stop\n"
    assert json.loads(command("show", "4", "--json").stdout)["last_error"] == "enough"
    again = command("cancel", "6")
    assert (again.returncode, "instance 6 is done: there is nothing to cancel" in again.stderr) == (1, True)


def test_history(command: Command, dsn: str, schema: str) -> None:
    """Outcome by outcome; nothing of one that has not run; an unknown one is told from that."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = "(6, now(), 0.5, 1, 2, 's', 'Done', 'w', 'Boom: no')"
        columns = "instance_id, started_at, duration, seq, attempt, step, outcome, worker, error"
        connection.execute(f"insert into {schema}.transitions ({columns}) values {row}".encode())
    shown = command("history", "6").stdout
    for words in ("s, attempt 2", "Done", "500.0 ms", "Boom: no"):
        assert words in shown
    (told,) = json.loads(command("history", "6", "--json").stdout)
    assert (told["seq"], told["outcome"], "state" in told) == (1, "Done", False)
    assert "nothing is kept of it" in command("history", "5").stderr
    assert command("history", "77").returncode == 1


def test_retry_and_rm(command: Command) -> None:
    """A failed one goes on, an ended one goes; others are refused with 1."""
    assert command("retry", "1").stderr == "instance 1: runnable again\n"
    again = command("retry", "1")
    assert again.returncode == 1
    assert "only a failed or cancelled one" in again.stderr
    live = command("rm", "3")
    assert live.returncode == 1
    assert "instance 3 is executing: only one that has ended" in live.stderr
    assert command("rm", "6").stderr == "instance 6: deleted\n"
    assert command("rm", "6").returncode == 1
    assert command("rm").returncode == 2


def test_metadata_index(command: Command) -> None:
    """It is made when somebody asks for it; to ask again does no harm."""
    for _ in range(2):
        done = command("migrate", "--metadata-index")
        assert done.returncode == 0
        assert "metadata is indexed" in done.stdout
    assert listed(command, "--metadata", "tenant=acme") == [2]
    assert "create index concurrently" in command("migrate", "--sql", "--metadata-index").stdout
