"""`gen-durable demo`: a shop with forty orders, two worker processes, and a kill -9 in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from gen_durable.cli.console import plainly
from gen_durable.cli.database import Database, reach
from gen_durable.cli.demo.checks import Verdict, judge
from gen_durable.cli.demo.processes import Crew
from gen_durable.cli.demo.program import SCHEMA
from gen_durable.cli.demo.script import Story, Stuck
from gen_durable.cli.demo.terminal import Lines, Picture, summary
from gen_durable.cli.demo.view import Stage
from gen_durable.store.statements import Statement

SECONDS = 12.0
_AT_PACE_1 = 9.0
"""How long the story takes as it is written; other lengths stretch it."""


@plainly
def demo(
    *,
    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn", metavar="URL", help=f"Use this database (its schema {SCHEMA}), not the one in ./.gen_durable/"
        ),
    ] = None,
    plain: bool = typer.Option(False, "--plain", help="Lines instead of a moving picture, as without a terminal."),
    seconds: float = typer.Option(SECONDS, min=4, max=120, help="About how long the story takes."),
) -> None:
    """See it work: forty orders, two worker processes, one of them killed in the middle of a step.

    Starts an embedded Postgres in ./.gen_durable/ and uses a schema of its own there, made anew each time. DATABASE_URL
    is not looked at: what kills and drops things should be told explicitly where to do so. At the end it compares what
    the database holds with what must be there; exit code 1 if anything is missing, or there twice.
    """
    console = Console()
    moving = console.is_terminal and not plain and not os.environ.get("CI")
    verdict = asyncio.run(_perform(dsn, console, seconds, moving=moving))
    if not verdict.good:
        raise typer.Exit(1)


async def _perform(dsn: str | None, console: Console, seconds: float, *, moving: bool) -> Verdict:
    console.print("Starting Postgres ..." if dsn is None else "Connecting ...", style="dim")
    async with reach(dsn) as database:
        await _be_the_only_one(database)
        notes, log = _files(database)
        pace = seconds / _AT_PACE_1
        console.print(f"{database.where}, schema {SCHEMA}")
        with _stage(console, moving=moving) as stage:
            story = Story(database, Crew(database.dsn, notes, log, pace), notes, stage, pace)
            try:
                told = await story.tell()
            except Stuck as error:
                raise Stuck(f"{error}; the workers wrote their log to {log}") from error
        verdict = await judge(database, told)
        summary(verdict, console)
        _farewell(console, database, notes, log)
    return verdict


@contextmanager
def _stage(console: Console, *, moving: bool) -> Generator[Stage]:
    if not moving:
        yield Lines()
        return
    with Live(console=console, auto_refresh=False) as live:
        yield Picture(live)


async def _be_the_only_one(database: Database) -> None:
    """Two demos in one database would drop each other's schema. The lock goes with our connection."""
    call = Statement("select pg_try_advisory_lock(hashtextextended($1, 0))", (SCHEMA,), lambda rows: bool(rows[0][0]))
    if not await database.link.run(call):
        raise Stuck("another demo is running in this database: wait until it has ended")


def _files(database: Database) -> tuple[Path, Path]:
    """The file that stands for the outside world, and the workers' log, both empty."""
    directory = database.directory or Path(tempfile.mkdtemp(prefix="gen_durable_demo_"))
    notes, log = directory / "demo.notes", directory / "demo.log"
    for file in (notes, log):
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
    return notes, log


def _farewell(console: Console, database: Database, notes: Path, log: Path) -> None:
    machines = Path(__file__).with_name("machines.py")
    here = " --dsn ..." if database.directory is None else ""
    console.print()
    console.print(f"data    {database.where}, schema {SCHEMA}", soft_wrap=True)
    console.print(f"notes   {notes} (every execution of a step), {log.name} (the workers' log)", soft_wrap=True)
    console.print(f"read    {machines} (the whole shop)", soft_wrap=True)
    console.print("try     gen-durable graph gen_durable.cli.demo.machines:Checkout", soft_wrap=True)
    console.print(f"        gen-durable doctor --schema {SCHEMA}{here}", soft_wrap=True)
