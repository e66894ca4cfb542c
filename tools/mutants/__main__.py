"""`python -m tools.mutants`: takes out one guard of the SQL after the other, and shows the test that notices."""

from __future__ import annotations

import argparse
import os
import queue
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from tools.mutants.catalogue_reader import Catalogue, Mutant, load, problems
from tools.mutants.run import ForkServer, Verdict


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description="Take out each fence, lock, order and constraint of the SQL, one at a time: a test must fail.",
        epilog="Exit code: 0 when every mutant was killed, 1 when one survived, 2 when the catalogue does not fit.",
    )
    parser.add_argument("names", nargs="*", help="only these: a file ('flush') or a mutant of it ('flush/3')")
    parser.add_argument("--check", action="store_true", help="run nothing: only whether the catalogue fits the SQL")
    parser.add_argument("--list", action="store_true", help="run nothing: only list the mutants and what they break")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--show", action="store_true", help="also print what pytest said, for each that was not killed")
    return parser.parse_args()


def main(options: argparse.Namespace) -> int:
    catalogue = load()
    found = list(problems(catalogue))
    for problem in found:
        print(problem)
    if found:
        print(f"\n{len(found)} problems: mend mutants/catalogue/, or say there why a guard needs no mutant")
        return 2
    chosen = [m for m in catalogue.mutants if not options.names or {m.name, m.file.stem} & set(options.names)]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:<22}{mutant.breaks}")
    if options.check or options.list:
        print(f"{len(chosen)} mutants, {len(catalogue.excuses)} guards excused: the catalogue fits the SQL")
        return 0
    if not chosen:
        print(f"no mutant is called {' or '.join(options.names)}")
        return 2
    with server() as dsn:
        return hunt(chosen, catalogue, dsn, options)


def hunt(chosen: Sequence[Mutant], catalogue: Catalogue, dsn: str, options: argparse.Namespace) -> int:
    """Every mutant, some at a time; a line for each as it ends."""
    began = time.monotonic()
    print(f"{len(chosen)} mutants, {len(catalogue.excuses)} guards excused; first their tests on the SQL as it is ...")
    tests = sorted({test for mutant in chosen for test in mutant.tests})
    servers: queue.SimpleQueue[ForkServer] = queue.SimpleQueue()
    for _ in range(options.jobs):
        servers.put(ForkServer(dsn))

    def try_out(mutant: Mutant) -> Verdict:
        server = servers.get()
        try:
            return server.try_out(mutant)
        finally:
            servers.put(server)

    first = servers.get()
    healthy = first.run(tests, patience=1800)
    servers.put(first)
    if healthy.state != "survived":
        print(healthy.output[-4000:])
        print("these tests fail without any mutant: they prove nothing")
        return 2
    print(f"pass in {healthy.seconds:.0f} s\n")
    states: dict[str, int] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        runs = {pool.submit(try_out, mutant): mutant for mutant in chosen}
        for done in as_completed(runs):
            verdict = done.result()
            states[verdict.state] = states.get(verdict.state, 0) + 1
            print(line(runs[done], verdict), flush=True)
            if options.show and verdict.state != "killed":
                print(verdict.output)
    minutes = (time.monotonic() - began) / 60
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    print(f"\n{counts}, {len(catalogue.excuses)} guards excused, in {minutes:.1f} min")
    return 0 if set(states) == {"killed"} else 1


def line(mutant: Mutant, verdict: Verdict) -> str:
    by = f"by {verdict.by}" if verdict.by else f"WHAT IT BREAKS: {mutant.breaks}"
    return f"{verdict.state:<9}{mutant.name:<22}{verdict.seconds:5.1f} s  {by}"


@contextmanager
def server() -> Iterator[str]:
    """One server for all of it: GEN_DURABLE_TEST_DSN, else an embedded one."""
    given = os.environ.get("GEN_DURABLE_TEST_DSN")
    if given:
        yield given
        return
    from gen_durable.embedded import release, start

    with tempfile.TemporaryDirectory(prefix="gen_durable_mutants_") as folder:
        started = start(Path(folder) / "server")
        try:
            yield started.dsn
        finally:
            release(started)


if __name__ == "__main__":
    sys.exit(main(arguments()))
