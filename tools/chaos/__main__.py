"""`python -m tools.chaos`: inject faults around the engine, and check the database afterwards."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import secrets
import sys
from pathlib import Path

from rich.console import Console

from tools.chaos.checks import CLEAN
from tools.chaos.display import show_checks
from tools.chaos.faults import GROUPS, KINDS, chosen
from tools.chaos.run import Options, run

RESULTS = Path(__file__).parent / "results"


def arguments() -> argparse.Namespace:
    kinds = "\n".join(f"  {name:<12}{' '.join((act.__doc__ or '').split())}" for name, (act, _) in KINDS.items())
    groups = "\n".join(f"  {name:<12}{', '.join(members)}" for name, members in GROUPS.items() if name != "all")
    parser = argparse.ArgumentParser(
        prog="python -m tools.chaos",
        description="Run workers under a mixed load, inject faults around them, and account for every step.",
        epilog=f"faults:\n{kinds}\n\ngroups:\n{groups}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long faults are injected (10)")
    parser.add_argument(
        "--seed", type=int, help="of the random plan of faults and load; printed, so that a run can be repeated"
    )
    parser.add_argument("--faults", default="all", help="which faults, as in sigkill,proxy (all); `none` for none")
    parser.add_argument("--workers", type=int, default=4, help="worker processes of 8 slots (4)")
    parser.add_argument(
        "--lease", type=float, help="of the workers, in seconds (2.5; 15 with faults that must not cost a lease)"
    )
    parser.add_argument("--load", type=float, default=1.0, help="share of the usual number of instances under way (1)")
    parser.add_argument("--pace", type=float, default=5.5, help="seconds from one fault to the next, on average (5.5)")
    parser.add_argument("--pg", help="the version of an installed Postgres, as in 15, instead of the wheel's")
    parser.add_argument("--sabotage", choices=("fence",), help="remove a guard of the engine: the checks must fail")
    parser.add_argument(
        "--prove", action="store_true", help="then damage the tables and verify that each check notices"
    )
    parser.add_argument("--no-mount", action="store_true", help="no tmpfs: data on the disk, which is never full then")
    parser.add_argument("--json", type=Path, help="where the figures go (chaos/results/SEED-FAULTS.json)")
    parser.add_argument("--keep", action="store_true", help="keep the directory of the run: logs and effects")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    console = Console(width=None if sys.stdout.isatty() else 180)
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    try:
        kinds = [] if given.faults == "none" else chosen(given.faults)
    except ValueError as error:
        console.print(f"[red]{error}[/]")
        return 2
    # A shared machine may stall for seconds: where no lease may expire, a stall must not count.
    lease = given.lease or (15.0 if CLEAN.issuperset(kinds) else 2.5)
    options = Options(
        seed=seed,
        minutes=given.minutes,
        kinds=kinds,
        workers=given.workers,
        lease=lease,
        pace=given.pace,
        load=given.load,
        postgres=given.pg,
        sabotage=given.sabotage,
        prove=given.prove,
        mount=not given.no_mount,
        keep=given.keep,
    )
    again = f"SEED={seed} MINUTES={given.minutes:g} FAULTS={given.faults}"
    console.print(f"seed {seed}; repeat with: make chaos {again}")
    logging.getLogger("gen_durable").addHandler(
        logging.NullHandler()
    )  # of the load's own client, whose connections break
    report = asyncio.run(run(options, console))
    show_checks(console, report.lines)
    path = given.json or RESULTS / f"{seed}-{given.faults.replace(',', '+')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.figures, indent=2) + "\n")
    figures = report.figures
    takeovers = figures["takeovers"]
    console.print(
        f"{figures['transitions']:,} transitions in {figures['seconds']:,.0f} s ({figures['per_second']:,.0f}/s),"
        f" {figures['faults_total']} faults, {figures['repeated']:,} steps run again ({figures['repeated_share']:.2%});"
        f" takeover p50 {takeovers['p50']:.2f} s, p99 {takeovers['p99']:.2f} s, max {takeovers['max']:.2f} s"
    )
    console.print(f"Figures: {path}")
    if report.good:
        console.print("[bold green]Nothing was lost, nothing was done twice.[/]")
        return 0
    console.print(
        f"[bold red]{sum(not line.good for line in report.lines)} checks failed.[/] Repeat: make chaos {again}"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
