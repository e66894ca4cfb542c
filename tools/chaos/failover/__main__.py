"""`python -m tools.chaos.failover`: remove the leader under load, with synchronous and asynchronous replication."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tools.chaos.failover.cluster import running
from tools.chaos.failover.scenarios import SCENARIOS, Report, run_scenario
from tools.chaos.failover.tools import gather

MODES = {"sync": "synchronous replication", "async": "asynchronous replication"}
COLUMNS = (
    f"{'':28}{'acknowledged':>13}{'lost':>6}{'unknown':>9}{'open':>6}{'doctor':>8}"
    f"{'gap':>9}{'promoted':>10}{'first commit':>14}"
)


def row(report: Report) -> str:
    said = report.account
    doctor = "clean" if said.broken == 0 else str(said.broken)
    return (
        f"{report.name:28}{report.acknowledged:>13,}{said.lost:>6,}{report.unknown:>9}{said.open:>6}{doctor:>8}"
        f"{report.gap:>7.2f} s{report.promoted:>8.1f} s{report.first_commit:>+12.2f} s"
    )


def faults(report: Report) -> list[str]:
    """What a report with synchronous replication must not say."""
    said = report.account
    lost = f"{said.lost_inserts} inserts, {said.lost_signals} signals and {said.lost_outcomes} outcomes were lost"
    found = {
        lost: said.lost,
        f"{said.open} instances have not ended": said.open,
        f"the doctor found {said.broken} broken rows": said.broken,
        f"the first commit came {report.first_commit:.1f} s after the promotion": report.first_commit > report.resume,
        "nothing was acknowledged": report.acknowledged == 0,
    }
    return [f"{report.name}: {words}" for words, wrong in found.items() if wrong]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.chaos.failover", description=__doc__)
    parser.add_argument("--mode", choices=[*MODES, "both"], default="both", help="how the standby is fed")
    parser.add_argument("--only", choices=list(SCENARIOS), action="append", help="one scenario; may be given again")
    parser.add_argument("--keep", action="store_true", help="leave the directory with all logs behind")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Under /tmp, whatever TMPDIR says: the servers' account must reach it, and a socket's path must be short.
    home = Path(tempfile.mkdtemp(prefix="gen_durable-failover-", dir="/tmp"))
    home.chmod(0o755)
    began = time.monotonic()

    def print_status(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {words}", file=sys.stderr, flush=True)

    wrong: list[str] = []
    try:
        print_status("fetching etcd and Patroni")
        tools = gather(home)
        for mode in MODES if options.mode == "both" else [options.mode]:
            print_status(f"starting two nodes with {MODES[mode]}")
            with running(tools, home / mode, synchronous=mode == "sync") as cluster:
                reports = [asyncio.run(run_scenario(cluster, name, print_status)) for name in options.only or SCENARIOS]
            print(f"\n{MODES[mode]}\n{COLUMNS}", *map(row, reports), sep="\n", flush=True)
            if mode == "sync":
                wrong = [words for report in reports for words in faults(report)]
    finally:
        if options.keep:
            print_status(f"everything is in {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    for words in wrong:
        print(words)
    print("\nWith synchronous replication nothing was lost." if not wrong and options.mode != "async" else "")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
