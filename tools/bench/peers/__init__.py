"""The same work on other libraries: `make bench PEERS=1`.

Each lives in an environment of its own under bench/.venvs, made from the pinned bench/peers/NAME/requirements.txt, and
is driven by bench/peers/NAME/drive.py in one process, on the same server, in a fresh database per run. The drivers and
the output say what counts as an end and which settings are used. The libraries have different guarantees, which the
notes name: read the numbers with them.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rich.console import Console
from rich.table import Table

from gen_durable import Start
from tools.bench.processes import Run, start_role
from tools.bench.report import number
from tools.bench.result import percentile
from tools.bench.scenario import Progress, Size
from tools.bench.server import Server
from tools.bench.throughput import WORK, Role, drain_case
from tools.bench.work import CHAIN, Chain, noop

HERE = Path(__file__).parent
VENVS = HERE.parent / ".venvs"
LIMIT = 300.0
OURS = "gen_durable"
WORKS = ("drain", "chain", "latency")


@dataclass(frozen=True, slots=True)
class Peer:
    """A library to compare with; `share` is how much of the full number of jobs it gets, so that it ends in time."""

    name: str
    share: float
    differs: str


PEERS = (
    Peer(
        "pgqueuer",
        1.0,
        "A job queue. Ends are gathered for up to 0.1 s and deleted from the queue in batches; results are not kept. A"
        " chain is a job that enqueues the next: five independent jobs, without a state between them.",
    ),
    Peer(
        "procrastinate",
        0.1,
        "A job queue. One job per fetch, one statement per end; results are not kept. A chain is a job that defers the"
        " next.",
    ),
    Peer(
        "absurd",
        0.1,
        "Durable tasks with checkpoints: a chain is one task, each step's result is kept. Workers poll, nothing wakes"
        " them; the latency is that of the poll interval.",
    ),
    Peer(
        "dbos",
        0.05,
        "Durable workflows with checkpoints: a chain is one workflow, each step's result is kept. Sync code in threads."
        " Its latency is of a workflow started in the calling process, without a queue.",
    ),
)


async def compare_all(server: Server, size: Size, progress: Progress) -> list[dict[str, Any]]:
    """Run all libraries, gen_durable included, round by round; one that does not run is listed with the reason."""
    progress.expect(len(PEERS) + size.rounds * len(WORKS) * (len(PEERS) + 1))
    reasons: dict[str, str] = {}
    for peer in PEERS:
        try:
            await asyncio.to_thread(_install, peer.name)
        except subprocess.CalledProcessError as error:
            reasons[peer.name] = f"could not be installed: {_last_line(error.stderr)}"
        progress.done(f"{peer.name}: installed")
    found: dict[str, dict[str, list[dict[str, Any]]]] = {
        name: {work: [] for work in WORKS} for name in (OURS, *(peer.name for peer in PEERS))
    }
    for turn in range(size.rounds):
        for work in WORKS:
            found[OURS][work].append(await _ours(server, size, work))
            progress.done(f"{OURS}: {work}")
            for peer in PEERS if turn % 2 == 0 else reversed(PEERS):
                if peer.name not in reasons:
                    try:
                        found[peer.name][work].append(await _drive(server, peer, work, _amount(size, work, peer.share)))
                    except (OSError, ValueError, TimeoutError) as error:
                        reasons[peer.name] = f"{work} failed: {error}"
                progress.done(f"{peer.name}: {work}")
    rows = [_row(OURS, "", found[OURS], "")]
    rows += [_row(peer.name, peer.differs, found[peer.name], reasons.get(peer.name, "")) for peer in PEERS]
    return rows


def show_peers(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print the comparison; below it, how each was set and what differs."""
    ours = rows[0]
    table = Table(title="Peers: one process each, same server; ratio = ours ÷ theirs", title_justify="left")
    table.add_column("library", no_wrap=True)
    for heading in ("no-op jobs/s", "ratio", "5-step chain, steps/s", "ratio", "insert → done, ms p50", "p95", "ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [f"{row['name']} {row['version']}"]
        for work in WORKS:
            measured, mine = row.get(work), ours.get(work)
            cells.append(number(measured["value"]) if measured else "-")
            if work == "latency":
                cells.append(number(measured["p95"]) if measured else "")
            cells.append(f"{mine['value'] / measured['value']:.2f}" if measured and mine and row is not ours else "")
        table.add_row(*cells)
    console.print(table)
    for row in rows:
        console.print(f"[bold]{row['name']}[/]: {row['settings']}", highlight=False)
        if row["differs"]:
            console.print(f"  {row['differs']}", highlight=False)
        if row["failed"]:
            console.print(f"  [red]did not run:[/] {row['failed']}", highlight=False)


def _install(name: str) -> None:
    """Create the environment, unless it exists with the same requirements."""
    home, wanted = VENVS / name, HERE / name / "requirements.txt"
    stamp = home / ".ready"
    if stamp.exists() and stamp.read_text() == wanted.read_text():
        return
    pip = (home / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-input")
    for command in ((sys.executable, "-m", "venv", "--clear", home), (*pip, "-r", wanted)):
        subprocess.run(command, check=True, capture_output=True, text=True)
    stamp.write_text(wanted.read_text())


def _amount(size: Size, work: str, share: float) -> int:
    match work:
        case "drain":
            return max(int(size.jobs * share), 200)
        case "chain":
            return max(int(size.chains * share), 100)
        case _:
            return min(size.samples, 60)


async def _drive(server: Server, peer: Peer, work: str, count: int) -> dict[str, Any]:
    database = f"peer_{next(server.numbers)}"
    await server.admin.execute(f"create database {database}")
    await server.admin.execute("checkpoint")
    process = await asyncio.create_subprocess_exec(
        *(VENVS / peer.name / "bin" / "python", HERE / peer.name / "drive.py", work, str(count)),
        env=os.environ | {"PEER_DSN": _in_database(server.dsn, database), "PYTHONPATH": str(HERE / "shared")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await server.admin.execute(f"drop database {database} with (force)")
    if process.returncode != 0 or not out.strip():
        raise ValueError(_last_line(err.decode()) or f"it ended with status {process.returncode}")
    reports: dict[str, Any] = json.loads(out.splitlines()[-1])
    return reports


async def _ours(server: Server, size: Size, work: str) -> dict[str, Any]:
    settings = "uvloop, asyncpg, concurrency 200; latency with default settings"
    role: Role = (WORK, {"queues": {"default": 200}})
    cases: dict[str, tuple[Callable[[], Awaitable[Run]], int]] = {
        "drain": (drain_case(server, Start(noop, 1), size.jobs, role), 1),
        "chain": (drain_case(server, Start(Chain.first, 1), size.chains, role), len(CHAIN)),
    }
    if work in cases:
        case, per = cases[work]
        run = await case()
        return {"settings": settings, "count": per * run.count, "seconds": run.seconds}
    samples = _amount(size, work, 1.0)
    async with server.app() as app, start_role(app, "tools.bench.scenarios.latency:same", samples=samples) as child:
        child.send("go")
        return {"settings": settings, "samples": (await child.result())["done"]}


def _row(name: str, differs: str, found: dict[str, list[dict[str, Any]]], failed: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "version": _version(name),
        "differs": differs,
        "failed": failed,
        "settings": "",
    }
    for work, reports in found.items():
        if not reports:
            continue
        row["settings"] = reports[0]["settings"]
        if work == "latency":
            pooled = [1000 * sample for one in reports for sample in one["samples"]]
            row[work] = {"value": percentile(pooled, 50), "p95": percentile(pooled, 95), "unit": "ms"}
        else:
            rates = [one["count"] / one["seconds"] for one in reports]
            row[work] = {"value": statistics.median(rates), "low": min(rates), "high": max(rates), "unit": "per second"}
    return row


def _version(name: str) -> str:
    if name == OURS:
        from importlib.metadata import version

        return version("gen-durable")
    return (HERE / name / "requirements.txt").read_text().splitlines()[0].partition("==")[2]


def _in_database(dsn: str, database: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{database}"))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
