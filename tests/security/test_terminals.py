"""What a terminal gets: text from data is printed as data, by every command, whatever the rows and arguments hold."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess

import psycopg
import pytest
import typer
from rich.text import Text
from tests.cli.test_console import in_terminal
from tests.support.commands import command_server, run
from tests.support.hostile import ALL, FORGED, LINK, STRINGS, STYLE, store_hostile_rows

import gen_durable.cli
from gen_durable.cli.app import app
from gen_durable.cli.console import EscapingConsole, make_escaped_text
from gen_durable.cli.demo.run_verifier import CheckResult, DemoReport, MachineTotals
from gen_durable.cli.demo.view_protocol import DemoEvent, DemoState, EventLevel
from gen_durable.cli.demo.views import LineView, LiveView, print_report
from gen_durable.cli.tables import new_borderless_table
from gen_durable.printable_text import TextBlock, escape_to_one_line

__all__ = ["command_server", "run"]

pytestmark = pytest.mark.dirty
Run = Callable[..., CompletedProcess[str]]
START = escape_to_one_line(STRINGS[0])
BAD = ALL.replace("=", "").replace("/", "")
"""As an argument: with everything in it, and of no form that an option takes."""
UNREACHABLE = f"postgresql://user:pw@127.0.0.1:1/{ALL.replace('/', '').replace('#', '').replace('?', '')}"
SHOP = """
from gen_durable import Machine
raise RuntimeError({!r})
"""

# Each command, on rows and with arguments that attack the terminal.
COMMANDS: dict[str, list[list[str]]] = {
    "demo": [["demo", "--dsn", UNREACHABLE], ["demo", "--dsn", BAD], ["demo", "--seconds", BAD]],
    "migrate": [["migrate", "--schema", BAD], ["migrate", "--dsn", UNREACHABLE], ["migrate", "--role-prefix", BAD]],
    "worker": [
        *(["worker", target] for target in (BAD, f"{BAD}:x", f"json:{BAD}", "hostile_shop:worker")),
        *(["worker", "json:x", option, BAD] for option in ("--drain-timeout", "--log-level", "--processes")),
    ],
    "ls": [
        ["ls"],
        *(["ls", option, BAD] for option in ("--limit", "--after", "--status", "--metadata", "--parent", "--queue")),
        *(["ls", option, BAD] for option in ("--inserted-after", "--machine", "--step", "--key", "--error", "--codec")),
        ["ls", "--metadata", "{" + ALL],
    ],
    "reencrypt": [["reencrypt", option, BAD] for option in ("--codec", "--batch", "--patience")],
    "count": [["count"], ["count", "--machine-version", BAD], ["count", "--finished-before", BAD]],
    "show": [
        ["show", "1"],
        *(["show", str(number), "--state"] for number in range(1, 6)),
        ["show", BAD],
        ["show", "--key", BAD],
        ["show", "1", f"--no-such-{ALL}"],
    ],
    "history": [["history", "1", "--tracebacks"], ["history", "--key", BAD], ["history", "1", "--last", BAD]],
    "signal": [
        ["signal", BAD, "go"],
        ["signal", "1", BAD],
        ["signal", "--key", BAD, "go"],
        ["signal", "2", "go", BAD],
    ],
    "signals": [["signals", "1", "--payloads"], ["signals", "--rejected"], ["signals", BAD]],
    "cancel": [["cancel", "--key", BAD], ["cancel", "3", "--reason", BAD], ["cancel", BAD]],
    "retry": [["retry", "--key", BAD], ["retry", "1"], ["retry", BAD]],
    "rm": [["rm", "--key", BAD], ["rm", "5"], ["rm", BAD]],
    "doctor": [["doctor"], ["doctor", "--schema", BAD], ["doctor", "--dsn", UNREACHABLE]],
    "grant": [["grant", BAD, "x"], ["grant", "producer", BAD], ["grant", "producer", "x", "--machine", BAD]],
    "revoke": [["revoke", BAD, "x"], ["revoke", "producer", BAD], ["revoke", "client", "x", "--queue", BAD]],
    "grants": [["grants"], ["grants", "--dsn", UNREACHABLE], ["grants", "--schema", BAD]],  # tests/cli/test_grants.py
    "graph": [["graph", target] for target in (BAD, f"{BAD}:x", f"json:{BAD}", "hostile_shop:Shop")],
    "uninstall": [["uninstall"], ["uninstall", "--yes"], ["uninstall", "--yes", "--force"]],
    "limits": [["limits"]],
    "limits set": [["limits", "set", BAD, "--concurrency", "1"], ["limits", "set", "x", "--rate", BAD]],
    "limits rm": [["limits", "rm", BAD]],
}
JSON = [
    ["ls", "--json"],
    ["show", "1", "--json", "--state"],
    ["history", "1", "--json", "--tracebacks", "--state"],
    ["signals", "--rejected", "--json", "--payloads"],
    ["doctor", "--json"],
    ["limits", "--json"],
]
WITHOUT_DSN = {"worker", "graph"}


@pytest.fixture
def rows(dsn: str, schema: str, tmp_path: Path) -> int:
    (tmp_path / "hostile_shop.py").write_text(SHOP.format(ALL.replace("\r", "")))
    return store_hostile_rows(dsn, schema)


def complete(words: list[str], dsn: str, schema: str) -> list[str]:
    """The arguments of a command, with the database of this test unless they name another one."""
    if words[0] not in WITHOUT_DSN and "--dsn" not in words:
        words = [*words, "--dsn", dsn]
    return words if words[0] in (*WITHOUT_DSN, "demo") or "--schema" in words else [*words, "--schema", schema]


def check_output(text: str) -> None:
    """Every line is printable, and none of them is the forged one."""
    for line in text.split("\n"):
        assert escape_to_one_line(line) == line
        assert not line.startswith(FORGED)


def all_commands() -> Iterator[str]:
    for command in app.registered_commands:
        yield command.name or command.callback.__name__  # type: ignore[union-attr]
    for group in app.registered_groups:
        yield str(group.name)
        assert group.typer_instance is not None
        for command in group.typer_instance.registered_commands:
            yield f"{group.name} {command.name}"


def test_every_command_is_covered() -> None:
    assert set(COMMANDS) == set(all_commands())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_data_as_data(command: str, run: Run, dsn: str, schema: str, rows: int) -> None:
    """All strings in all columns, and in the arguments that a command echoes."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'create table {schema}."{ALL}" ()'.encode())
    for words in COMMANDS[command]:
        done = run(*complete(words, dsn, schema))
        check_output(done.stdout)
        check_output(done.stderr)
        assert done.stdout + done.stderr != ""
        assert "Traceback" not in done.stderr or "hostile_shop" in " ".join(words)


@pytest.mark.parametrize("words", JSON)
def test_json_is_ascii_and_has_the_text(words: list[str], run: Run, dsn: str, schema: str, rows: int) -> None:
    """It stays JSON: a reader gets the very text of the rows, and a terminal gets escapes."""
    done = run(*complete(words, dsn, schema))
    assert done.stdout.isascii()
    check_output(done.stdout)
    told = repr(json.loads(done.stdout))
    assert words[0] == "doctor" or repr(ALL)[1:-1] in told


def test_a_row_is_a_line(run: Run, dsn: str, schema: str, rows: int) -> None:
    """No name, key or error adds a line to a table."""
    assert len(run(*complete(["ls", "-n", "1000"], dsn, schema)).stdout.splitlines()) == 1 + rows
    assert len(run(*complete(["signals", "--rejected"], dsn, schema)).stdout.splitlines()) == 1 + rows
    assert len(run(*complete(["limits"], dsn, schema)).stdout.splitlines()) == 1 + 2 * (1 + len(STRINGS))


def test_a_fact_is_a_line(run: Run, dsn: str, schema: str, rows: int) -> None:
    """`show` keeps the line breaks of the error and of the traceback. Those of names, keys and messages are escapes."""
    number = 6 + STRINGS.index(f"x\n{FORGED}")
    lines = run(*complete(["show", str(number), "-n", "0"], dsn, schema), COLUMNS="").stdout.splitlines()
    shown = f"x\\n{FORGED}"
    for fact in ("machine", "step", "error type", "queue", "partition key", "unique key", "metadata", "signals"):
        assert [line for line in lines if line.startswith(fact) and shown in line], fact
    (progress,) = (line for line in lines if line.startswith("progress"))
    assert f"{shown} ({shown}): {shown}" in progress
    above, below = lines[: lines.index("traceback")], lines[lines.index("traceback") + 1 :]
    assert [line.strip() for line in above if line.endswith(f" {FORGED}")] == [FORGED]  # of the error
    assert all(line.startswith("  ") for line in below)


def test_objects_that_uninstall_keeps(run: Run, dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'create table {schema}."{STRINGS[3]}" ()'.encode())
    done = run(*complete(["uninstall", "--yes"], dsn, schema))
    assert done.returncode == 0, done.stderr
    assert f"x\\n{FORGED}" in done.stdout
    check_output(done.stdout)


def test_markup_is_text(run: Run, dsn: str, schema: str, rows: int) -> None:
    """A limit that closes a style, or that names a link, is listed by its name."""
    shown = run(*complete(["limits"], dsn, schema))
    assert shown.returncode == 0, shown.stderr
    for name in ("slots x[|red]", "slots [link=https:||evil.example]click[|link]", "x[/red]", ":smile: \\[x]"):
        assert name in shown.stdout
    listed = run(*complete(["ls"], dsn, schema)).stdout
    assert "[link=https://evil.example]click[/link]" in listed
    assert "\\u202egnp.exe" in listed
    assert "zero\\u200bwidth" in listed


@pytest.mark.parametrize(
    "words", [["ls"], ["show", "1", "--state"], ["limits"], ["doctor"], ["history", "1", "--tracebacks"]]
)
def test_a_terminal_gets_styles_and_nothing_else(
    words: list[str], tmp_path: Path, dsn: str, schema: str, rows: int
) -> None:
    """In colour: the sequences are those of the styles, none is a link, and none comes out of a row."""
    shown = in_terminal(tmp_path, *complete(words, dsn, schema), NO_COLOR="", TERM="xterm-256color")
    assert STYLE.search(shown)
    assert not LINK.search(shown)
    check_output(STYLE.sub("", shown).replace("\r\n", "\n"))


def test_help_of_an_unknown_command_and_option(run: Run) -> None:
    for words in ([BAD], ["ls", f"--{BAD}"], ["limits", BAD]):
        done = run(*words)
        assert done.returncode == 2
        assert "\\x1b[2J" in done.stderr
        check_output(done.stderr)


def test_an_error_of_the_server_is_printed_as_data(run: Run, dsn: str, schema: str) -> None:
    """Its message, detail and hint: a line each, with their labels."""
    body = f"""create function {schema}.refuse() returns bool language plpgsql as $$ begin
        raise exception using message = %s, detail = %s, hint = %s; end $$"""
    with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(body.encode(), [f"{label}{ALL}" for label in "mdh"])
        connection.execute(f"alter table {schema}.instances rename to instances_".encode())
        view = f"create view {schema}.instances as select * from {schema}.instances_ where {schema}.refuse()"
        connection.execute(f"insert into {schema}.instances_ (fsm, step) values ('m', 's'); {view}".encode())
    done = run(*complete(["doctor"], dsn, schema))
    assert done.returncode == 2
    check_output(done.stderr)
    assert "DETAIL" not in done.stderr.splitlines()[0]
    starts = [f"gen-durable: the database rejected the command: m{START}", f"DETAIL:  d{START}", f"HINT:  h{START}"]
    assert [line[: len(start)] for line, start in zip(done.stderr.splitlines(), starts, strict=True)] == starts


def test_the_live_picture_of_the_demo() -> None:
    """Events, locations and reports of the demo are data, too."""
    console = EscapingConsole(file=StringIO(), width=300, force_terminal=True, color_system="truecolor")
    state = DemoState(ALL)
    state.events.append(DemoEvent(1.0, ALL, EventLevel.BAD))
    from rich.live import Live

    with Live(console=console, auto_refresh=False, screen=False) as live:
        LiveView(live).show_state(state)
    print_report(DemoReport((MachineTotals(ALL, 1, 1, 1),), (CheckResult(ok=True, text=ALL),)), console)
    console.print(f"data    {ALL}", soft_wrap=True)
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "[link=https://evil.example]click[/link]" in shown
    assert not LINK.search(shown)
    check_output(re.sub(r"\x1b\[([0-9;]*[mKA]|\?25[lh])", "", shown).replace("\r", ""))


def test_lines_of_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    LineView().show_event(DemoEvent(1.0, ALL, EventLevel.BAD))
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 1
    check_output(shown)


def test_the_console_escapes_what_was_forgotten() -> None:
    """A `Text` that nothing has escaped, and a plain string in a table."""
    console = EscapingConsole(file=StringIO(), width=2000, color_system=None)
    table = new_borderless_table()
    table.add_column("a")
    table.add_row(ALL)
    for thing in (ALL, table, Text(ALL.replace("\n", "")), Text("hidden \u3164"), make_escaped_text(ALL)):
        console.print(thing)
    assert isinstance(console.file, StringIO)
    check_output(console.file.getvalue())
    block = make_escaped_text(TextBlock(f"a\n{FORGED}"))
    assert block.plain == f"  a\n  {FORGED}"


# --- nothing else writes ---------------------------------------------------------------------------

CLI = Path(gen_durable.cli.__file__).parent
WRITERS = {"console.py", "tables.py", "__init__.py"}
BANNED_NAMES = {"print", "Text", "Console", "echo", "secho", "prompt", "confirm", "style", "Panel.fit"}
BANNED_ATTRIBUTES = {"echo", "secho", "prompt", "confirm", "launch", "stdout", "stderr", "from_markup", "from_ansi"}
ALLOWED = {
    ("worker.py", "sys.stdout"),  # flushed at an exit
    ("worker.py", "sys.stderr"),  # the stream of the logs, which loggers make printable
}


def writes(path: Path) -> Iterator[str]:
    """The places in a module that write to a terminal, or that make text with styles, by themselves."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_NAMES:
            yield node.func.id
        if isinstance(node, ast.Attribute) and node.attr in BANNED_ATTRIBUTES:
            yield ast.unparse(node)


def test_only_two_modules_write() -> None:
    """Commands print through `console` and `tables`, so a new command cannot print a row raw."""
    modules = [path for path in CLI.rglob("*.py") if path.name not in WRITERS or path.parent != CLI]
    assert len(modules) > 25
    found = {(path.name, what) for path in modules for what in writes(path)}
    assert found - ALLOWED == set()
    assert {what for path in CLI.glob("*.py") if path.name in WRITERS for what in writes(path)} >= {
        "print",
        "Text",
        "typer.echo",
        "typer.prompt",
    }
    assert typer.echo is not None
