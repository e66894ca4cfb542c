"""`ls`, `count`, `show`, `history`, `signal`, `cancel`, `retry`, `rm`: processes on rows of all kinds."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.support.rows import LIVE, ended, executing, instance, parent, parked

from gen_durable.store.schema import Schema

Command = Callable[..., Any]
TRACEBACK = 'Traceback (most recent call last):\n  File "\x1b[31m.py", line 1, in pay\nshop.Declined'
ROWS = (
    ended(
        1,
        status="failed",
        last_error="no\x1b[31m luck",
        step="pay",
        state='{"card": "4111"}',
        ago=60,
        error_type="shop.Declined",
        last_traceback=TRACEBACK,
    )
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
    for words in ("blocked on partition/p", "waits for 1 child", "on w", "waits for go", "no\\x1b[31m luck"):
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
    assert listed(command, "--blocked") == [5]
    assert listed(command, "--blocked", "--due") == []
    assert listed(command, "--error", "LUCK") == [1]


def test_limit_and_after(command: Command) -> None:
    """It says how to go on."""
    first = command("ls", "-n", "4")
    assert first.stderr.startswith("there may be more: --after ")
    rest = command("ls", "--after", first.stderr.split()[-1])
    assert [line.split()[0] for line in rest.stdout.splitlines()[1:]] == ["2", "1"]
    assert command("ls", "--machine", "nobody").stderr == "no instance matches\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--inserted-after", "soon"), "is not a time"),
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


def test_show_prints_the_last_traceback(command: Command) -> None:
    """Below the facts, its lines indented, and no escape sequence; as JSON without --state too."""
    shown = command("show", "1").stdout
    escaped = textwrap.indent(TRACEBACK.replace("\x1b", "\\x1b"), "  ")
    assert f"\ntraceback\n{escaped}\n" in shown
    assert ["error", "type", "shop.Declined"] in [line.split() for line in shown.splitlines()]
    told = json.loads(command("show", "1", "--json").stdout)
    assert (told["error_type"], told["traceback"]) == ("shop.Declined", TRACEBACK)
    assert "traceback" not in command("show", "6").stdout


def test_history_prints_tracebacks_on_request(command: Command, dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        columns = "instance_id, seq, step, outcome, attempt, started_at, duration, error, error_type, traceback"
        for seq, error in ((0, "null, null, null"), (1, "'no luck', 'shop.Declined', E'Traceback\\n  frames'")):
            row = f"(1, {seq}, 'pay', 'Retry', 0, now(), 0.5, {error})"
            connection.execute(f"insert into {schema}.transitions ({columns}) values {row}".encode())
    assert "frames" not in command("history", "1").stdout
    shown = command("history", "1", "--tracebacks").stdout
    assert shown.endswith("\n1 pay, shop.Declined\n  Traceback\n    frames\n")
    assert [t["error_type"] for t in json.loads(command("history", "1", "--json").stdout)] == [None, "shop.Declined"]
    told = json.loads(command("history", "1", "--json", "--tracebacks").stdout)
    assert [t["traceback"] for t in told] == [None, "Traceback\n  frames"]


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
    assert command(*by_key).stderr == "signal go: already delivered with this dedup key\n"
    gone = command("signal", "6", "go")
    assert gone.returncode == 1
    assert "instance 6 is unknown or has ended" in gone.stderr
    for bad in (("3", "go", "{x"), ("go",), ("3", "go", "1", "2"), ("3",)):
        assert command("signal", *bad).returncode == 2


def test_cancel(command: Command) -> None:
    """What waits ends, with its children; what executes is asked; what has ended is refused."""
    assert command("cancel", "4", "--reason", "enough").stderr == "instance 4: 2 cancelled, 0 executing and stopping\n"
    assert command("cancel", "3").stderr == "instance 3: 0 cancelled, 1 executing and stopping\n"
    assert json.loads(command("show", "4", "--json").stdout)["last_error"] == "enough"
    again = command("cancel", "6")
    assert (again.returncode, "instance 6 is already done. There is nothing to cancel." in again.stderr) == (1, True)


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
    assert "no history" in command("history", "5").stderr
    assert command("history", "77").returncode == 1


def test_retry_and_rm(command: Command) -> None:
    """A failed one goes on, an ended one goes; others are refused with 1."""
    assert command("retry", "1").stderr == "instance 1: runnable again\n"
    again = command("retry", "1")
    assert again.returncode == 1
    assert "only a failed or cancelled instance" in again.stderr
    live = command("rm", "3")
    assert live.returncode == 1
    assert "instance 3 is executing: only an ended instance" in live.stderr
    assert command("rm", "6").stderr == "instance 6: deleted\n"
    assert command("rm", "6").returncode == 1
    assert command("rm").returncode == 2


def test_the_key_of_ended_instances(command: Command, dsn: str, schema: str) -> None:
    """It finds the last one inserted with it; a signal and a cancel find no live holder, and retry makes it live."""
    scope = "{runnable,executing,done,failed,cancelled}"
    given = ended(8, unique_key=b"k") + ended(9, unique_key=b"k", status="failed", unique_scope=scope)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(Schema(schema).render(given).encode())
    assert json.loads(command("show", "--key", "k", "--json").stdout)["id"] == 9
    assert listed(command, "--key", "k") == [9, 8]
    assert command("history", "--key", "k").returncode == 0
    for refused in (("signal", "--key", "k", "go"), ("cancel", "--key", "k")):
        answer = command(*refused)
        assert (answer.returncode, "is unknown or has ended" in answer.stderr) == (1, True)
    assert command("retry", "--key", "k").stderr == "instance with key k: runnable again\n"
    assert command("cancel", "--key", "k").stderr == "instance 9: 1 cancelled, 0 executing and stopping\n"
    assert command("rm", "--key", "k").stderr == "instance with key k: deleted\n"
    assert json.loads(command("show", "--key", "k", "--json").stdout)["id"] == 8


def test_metadata_index(command: Command) -> None:
    """It is made when somebody asks for it; to ask again does no harm."""
    for _ in range(2):
        done = command("migrate", "--metadata-index")
        assert done.returncode == 0
        assert "metadata is indexed" in done.stdout
    assert listed(command, "--metadata", "tenant=acme") == [2]
    assert "create index concurrently" in command("migrate", "--sql", "--metadata-index").stdout


JOURNAL = """
update @schema.instances set has_journal = true, seq = 3, visit = 2 where id = 2;
insert into @schema.transitions
  (instance_id, started_at, duration, seq, attempt, step, outcome, next_step, error, state)
values
  (2, now(), 0.5, 1, 0, 'a', 'Next', 'b', null, '{"card": "42"}'), (2, now(), 2, 2, 0, 'b', 'Next', 's', null, null),
  (2, now(), 0.1, 3, 2, 's', 'Await', 's', 'Boom: no' || repeat(' luck', 40), null);
insert into @schema.activities
  (instance_id, started_at, duration, visit, n, attempt, step, name, parameters, result, error)
values (2, now(), 0.2, 2, 1, 0, 's', 'charge', '["4711"]', null, 'ConnectionError: no line'),
  (2, now(), 0.3, 2, 2, 1, 's', 'charge', '["4711"]', '{"receipt": 17}', null);
insert into @schema.progress (instance_id, fraction, step, branch, message, detail)
values (2, 0.4, 's', '', 'parsed 4 of 10', '{"k": "4712"}'), (2, null, 's', 'left', null, null);
insert into @schema.checkpoints (instance_id, visit, version, format, value) values (2, 2, 3, 1, '"4713"');
"""


@pytest.fixture
def journal(dsn: str, schema: str, rows: None) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(Schema(schema).render(JOURNAL).encode())


def test_show_tells_what_it_has_done(command: Command, journal: None) -> None:
    """Progress, that there is a checkpoint, the last outcomes and activities; what steps have written is not shown."""
    shown = command("show", "2").stdout
    for words in (
        "s: 40%, parsed 4 of 10 (", "s (left): started (", "number 3 of this visit (", "Next -> b", "s, attempt 2",
        "Await -> s", "Boom: no luck", "2  s     charge, attempt 1", "finished", "ConnectionError: no line",
    ):  # fmt: skip
        assert words in shown, words
    assert not [secret for secret in ("4711", "4712", "4713", "card", "receipt") if secret in shown]
    few = command("show", "2", "-n", "1").stdout
    assert ("Await -> s" in few, "Next -> b" in few, "charge, attempt 1" in few, "no line" in few) == (
        True, False, True, False,
    )  # fmt: skip
    none = command("show", "2", "-n", "0").stdout
    assert ("Await -> s" in none, "parsed 4 of 10" in none) == (False, True)
    assert "seq" not in command("show", "3").stdout


def test_show_as_json(command: Command, journal: None) -> None:
    """The same as data; payloads with --state."""
    done = command("show", "2", "--json", "--last", "2")
    told = json.loads(done.stdout)
    assert [(t["seq"], t["outcome"], t["next_step"]) for t in told["history"]] == [(2, "Next", "s"), (3, "Await", "s")]
    assert [(a["step"], a["name"], a["attempt"], a["error"]) for a in told["activities"]] == [
        ("s", "charge", 0, "ConnectionError: no line"), ("s", "charge", 1, None),
    ]  # fmt: skip
    assert [(p["branch"], p["fraction"], p["message"]) for p in told["progress"]] == [
        ("", 0.4, "parsed 4 of 10"), ("left", None, None),
    ]  # fmt: skip
    assert told["checkpoint"]["version"] == 3
    assert not [secret for secret in ("4711", "4712", "4713", "card", "receipt") if secret in done.stdout]
    whole = json.loads(command("show", "2", "--json", "--state").stdout)
    assert (whole["checkpoint"]["value"], whole["progress"][0]["detail"]) == ("4713", {"k": "4712"})
    assert (whole["activities"][1]["parameters"], whole["activities"][1]["result"]) == (["4711"], {"receipt": 17})
    assert whole["history"][0]["state"] == {"card": "42"}
    nothing = json.loads(command("show", "3", "--json").stdout)
    assert (nothing["history"], nothing["activities"], nothing["progress"], nothing["checkpoint"]) == ([], [], [], None)


@pytest.mark.parametrize("columns", ["80", "120"])
def test_only_the_last_column_is_cut(run: Any, dsn: str, schema: str, journal: None, columns: str) -> None:
    """On a narrow terminal all facts are whole, and a long error ends where the terminal does."""
    for name, words in (("show", "s, attempt 2  Await -> s"), ("history", "s, attempt 2  Await -> s")):
        shown = run(name, "2", "--dsn", dsn, "--schema", schema, COLUMNS=columns).stdout.splitlines()
        (line,) = [line for line in shown if words in line]
        assert "Boom: " in line
        assert line.rstrip().endswith("…")
        assert max(map(len, shown)) <= int(columns)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"update {schema}.instances set last_error = repeat('no luck ', 40) where id = 1".encode())
    listed = run("ls", "-s", "failed", "--dsn", dsn, "--schema", schema, COLUMNS=columns).stdout.splitlines()
    assert listed[0].split() == ["id", "machine", "step", "status", "queue", "inserted", "changed", "note"]
