"""`gen-durable demo`: a shop with forty orders and two worker processes, one of which is killed."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from gen_durable.cli.console import exit_on_expected_errors, new_width_limited_console
from gen_durable.cli.database_opener import ConnectedDatabase, open_database
from gen_durable.cli.demo.demo_script import DemoFailed, DemoScript
from gen_durable.cli.demo.run_verifier import DemoReport, verify_run
from gen_durable.cli.demo.schema import drop_or_rename_old_schema
from gen_durable.cli.demo.view_protocol import DemoView
from gen_durable.cli.demo.views import LineView, LiveView, print_report
from gen_durable.cli.demo.worker_processes import WorkerProcesses
from gen_durable.cli.demo.worker_program import SCHEMA
from gen_durable.pg.migrate import migrate
from gen_durable.store.schema import Schema
from gen_durable.store.statements import Statement

SECONDS = 12.0
_SECONDS_AT_PACE_1 = 9.0
"""How long the script takes at pace 1; other lengths stretch it."""


@exit_on_expected_errors
def demo(
    *,
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn",
            metavar="URL",
            help=f"Use schema {SCHEMA} of this database. Default: the embedded server in ./.gen_durable/",
        ),
    ] = None,
    plain: bool = typer.Option(False, "--plain", help="Print lines instead of a live picture, as without a terminal."),
    seconds: float = typer.Option(SECONDS, metavar="SECONDS", min=4, max=120, help="About how long the demo takes."),
) -> None:
    """Run forty orders on two worker processes, and kill one of them on the way.

    Starts an embedded Postgres in ./.gen_durable/ and recreates a schema of its
    own there. DATABASE_URL is ignored: the demo drops its schema, so it uses
    another database only if you pass --dsn. At the end it checks that no outcome
    was lost or committed twice; exit code 1 if one was.
    """
    console = new_width_limited_console()
    is_live = console.is_terminal and not plain and not os.environ.get("CI")
    report = asyncio.run(_run_demo(dsn, console, seconds, is_live=is_live))
    if not report.has_passed:
        raise typer.Exit(1)


async def _run_demo(dsn: str | None, console: Console, seconds: float, *, is_live: bool) -> DemoReport:
    console.print("Starting Postgres ..." if dsn is None else "Connecting ...", style="dim")
    async with open_database(dsn) as database:
        await _lock_database_for_demo(database)
        event_log, log = _choose_log_paths(database)
        _delete_old_logs(event_log, log)
        pace = seconds / _SECONDS_AT_PACE_1
        console.print(f"{database.location}, schema {SCHEMA}")
        renamed = await drop_or_rename_old_schema(database.connection, Schema(SCHEMA))
        await migrate(database.connection, Schema(SCHEMA))
        if renamed is not None:
            console.print(
                f"Schema {SCHEMA} held data in the layout of an older version: it is now called {renamed}.",
                soft_wrap=True,
            )
        with _open_view(console, is_live=is_live) as view:
            script = DemoScript(database, WorkerProcesses(database.dsn, event_log, log, pace), event_log, view, pace)
            try:
                seen = await script.run()
            except DemoFailed as error:
                raise DemoFailed(f"{error}. See the workers' log: {log}") from error
        report = await verify_run(database, seen)
        print_report(report, console)
        _print_next_steps(console, database, event_log, log)
    return report


@contextmanager
def _open_view(console: Console, *, is_live: bool) -> Generator[DemoView]:
    if not is_live:
        yield LineView()
        return
    with Live(console=console, auto_refresh=False) as live:
        yield LiveView(live)


async def _lock_database_for_demo(database: ConnectedDatabase) -> None:
    """Take a lock for this connection: two demos in one database would drop each other's schema."""
    statement = Statement(
        "select pg_try_advisory_lock(hashtextextended($1, 0))", (SCHEMA,), lambda rows: bool(rows[0][0])
    )
    if not await database.connection.run(statement):
        raise DemoFailed("Another demo is running in this database. Wait until it has ended.")


def _choose_log_paths(database: ConnectedDatabase) -> tuple[Path, Path]:
    """The event log and the workers' log: beside the embedded server's data, else in a new temporary directory."""
    directory = database.directory or Path(tempfile.mkdtemp(prefix="gen_durable_demo_"))
    return directory / "demo.events", directory / "demo.log"


def _delete_old_logs(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _print_next_steps(console: Console, database: ConnectedDatabase, event_log: Path, log: Path) -> None:
    machines = Path(__file__).with_name("machines.py")
    dsn_option = " --dsn ..." if database.directory is None else ""
    console.print()
    console.print(f"data    {database.location}, schema {SCHEMA}", soft_wrap=True)
    console.print(f"events  {event_log} (every execution of a step), {log.name} (the workers' log)", soft_wrap=True)
    console.print(f"read    {machines} (the whole shop)", soft_wrap=True)
    console.print("try     gen-durable graph gen_durable.cli.demo.machines:Checkout", soft_wrap=True)
    console.print(f"        gen-durable doctor --schema {SCHEMA}{dsn_option}", soft_wrap=True)
