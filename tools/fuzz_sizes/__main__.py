"""`python -m tools.fuzz_sizes`: run machines with payloads up to their bounds beside a heartbeat job."""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import signal
import sys
from pathlib import Path

from tools.bench.server import serve
from tools.fuzz_sizes.run import LATEST, UNDER_WAY, Figures, Options, Run, describe


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz_sizes", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long instances are inserted (5)")
    parser.add_argument("--seed", type=int, help="of the programs and batches; printed, so that a run can be repeated")
    parser.add_argument("--slots", type=int, default=8, help="concurrency of the queue of the fuzz (8)")
    parser.add_argument("--under-way", type=int, default=UNDER_WAY, help=f"bytes of payloads at once ({UNDER_WAY:,})")
    parser.add_argument(
        "--latest", type=float, default=LATEST, help=f"seconds that a heartbeat may be late ({LATEST:g})"
    )
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser.parse_args()


def say(words: str) -> None:
    print(words, flush=True)


async def run(options: Options) -> Figures:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # so that no process is left behind
    async with serve() as server:
        return await Run(options, server, say).go()


def main() -> int:
    given = arguments()
    seed = secrets.randbelow(10**6) if given.seed is None else given.seed
    say(f"seed {seed}; repeat with: make fuzz-sizes MINUTES={given.minutes:g} SEED={seed}")
    figures = asyncio.run(run(Options(seed, given.minutes * 60, given.slots, given.under_way, given.latest)))
    say(describe(figures))
    if given.json is not None:
        given.json.write_text(json.dumps({**vars(figures), "ended": dict(figures.ended)}, indent=2) + "\n")
    problems = figures.verdict(given.latest)
    for problem in problems[:10]:
        say(f"BAD: {problem}")
    say(f"{len(problems)} problems." if problems else "Every instance ended as expected.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
