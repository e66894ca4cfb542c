"""`python -m tools.mutants.python`: changes random lines of the Python code, one at a time, and runs their tests."""

from __future__ import annotations

import argparse
import difflib
import os
import queue
import random
import secrets
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Final

from tools.mutants.__main__ import server
from tools.mutants.python import excuses as excused
from tools.mutants.python import line_map
from tools.mutants.python.line_map import PACKAGE, LineMap
from tools.mutants.python.mutations import Mutation, find_mutations
from tools.mutants.python.run import Tree
from tools.mutants.run import Verdict

FOLDERS: Final = ("engine", "operations", "core", "pg", "embedded")
MODULES: Final = ("json_codec.py", "encryption.py")
WANTED: Final = 0.95


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation of a file."""

    file: str
    mutation: Mutation
    source: str  # kept, because the file may change while the mutants run

    @property
    def place(self) -> str:
        return f"src/gen_durable/{self.file}:{self.mutation.line}"

    def diff(self) -> str:
        old, new = self.source.splitlines(), self.mutation.apply(self.source).splitlines()
        return "\n".join(
            line for line in difflib.unified_diff(old, new, lineterm="", n=1) if line[:3] not in ("---", "+++")
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants.python",
        description="Change random lines of the Python code, one at a time, and run the tests that execute them.",
        epilog="Exit code: 1 when less than 95 % of what is not excused was noticed, 2 when an excuse is out of date.",
    )
    parser.add_argument("tests", nargs="*", help="with --map: only these tests")
    parser.add_argument("--seed", type=int, default=None, help="the seed of the sample; printed")
    parser.add_argument("--count", type=int, default=100, help="how many mutations")
    parser.add_argument(
        "--only", default="", help="only files whose path contains this text, for example engine/committer"
    )
    parser.add_argument("--function", default="", help="only functions whose qualified name contains this text")
    parser.add_argument(
        "--lines",
        default="",
        help="with --only: every mutation of these lines, for example 12,40-55, instead of a sample",
    )
    parser.add_argument("--budget", type=float, default=100.0, help="seconds of tests per mutation")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many at a time")
    parser.add_argument("--map", action="store_true", help="record anew which tests execute which lines")
    parser.add_argument("--list", action="store_true", help="run nothing: only list the sample")
    parser.add_argument("--check", action="store_true", help="run nothing: only whether the excuses fit the code")
    parser.add_argument("--show", action="store_true", help="also print what pytest said of each that survived")
    return parser.parse_args()


def main(options: argparse.Namespace) -> int:
    excuses = excused.load()
    found = list(excused.problems(excuses, PACKAGE))
    for problem in found:
        print(problem)
    if found:
        return 2
    if options.check:
        print(f"{len(excuses)} excuses fit the code")
        return 0
    seed = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    chosen = all_mutants(options.only, options.function)
    if options.lines:
        wanted = parse_lines(options.lines)
        chosen = [mutant for mutant in chosen if mutant.mutation.line in wanted]
        print(f"{len(chosen)} mutants")
    else:
        chosen = sample(chosen, seed, options.count)
        print(f"seed {seed}: {len(chosen)} mutants")
    if options.list:
        for mutant in chosen:
            print(f"{mutant.place} {mutant.mutation.function}: {mutant.mutation.kind}\n{mutant.diff()}")
        return 0
    with server() as dsn:
        lines = line_map.load()
        if options.map or not lines.tests:
            print("recording which tests execute which lines ...", flush=True)
            lines = line_map.record(options.tests, dsn, options.jobs)
            if options.map:
                return 0
        return hunt(chosen, excuses, lines, dsn, options)


def all_mutants(only: str = "", function: str = "") -> list[Mutant]:
    """Every mutation of the code under test, in the order of files and lines."""
    files = sorted(path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py"))
    files += [PACKAGE / name for name in MODULES]
    return [
        Mutant(name, mutation, source)
        for name, source in ((str(path.relative_to(PACKAGE)), path.read_text("utf-8")) for path in files)
        if only in name
        for mutation in find_mutations(source)
        if function in mutation.function
    ]


def parse_lines(text: str) -> set[int]:
    """The line numbers that `12,40-55` names."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def sample(mutants: list[Mutant], seed: int, count: int) -> list[Mutant]:
    """At most one mutation per line, each line as likely as any other."""
    lines: dict[tuple[str, int], list[Mutant]] = {}
    for mutant in mutants:
        lines.setdefault((mutant.file, mutant.mutation.line), []).append(mutant)
    chooser = random.Random(seed)
    return [chooser.choice(lines[line]) for line in chooser.sample(sorted(lines), min(count, len(lines)))]


def hunt(
    chosen: list[Mutant], excuses: list[excused.Excuse], lines: LineMap, dsn: str, options: argparse.Namespace
) -> int:
    """Every mutant, some at a time; a line for each as it ends."""
    began = time.monotonic()
    trees: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for _ in range(options.jobs):
        trees.put(Tree(dsn))

    def try_out(mutant: Mutant) -> tuple[Verdict, int, bool]:
        tests, known = lines.find_tests(mutant.file, mutant.mutation, mutant.source, options.budget)
        if not tests:
            return Verdict("survived", "", 0.0, ""), 0, False
        tree = trees.get()
        try:
            return tree.try_out(mutant.file, mutant.mutation, tests, options.budget), len(tests), known
        finally:
            trees.put(tree)

    states: Counter[str] = Counter()
    pool = ThreadPoolExecutor(options.jobs)
    try:
        runs = {}
        for mutant in chosen:
            excuse = excused.find_excuse(excuses, mutant.file, mutant.mutation)
            if excuse is None:
                runs[pool.submit(try_out, mutant)] = mutant
            else:
                states["excused"] += 1
                print(f"excused  {mutant.place} {mutant.mutation.kind}: {excuse.reason}", flush=True)
        for done in as_completed(runs):
            mutant, (verdict, count, known) = runs[done], done.result()
            states[verdict.state] += 1
            print(line(mutant, verdict, f"{count} tests{'' if known else ', none known to execute it'}"), flush=True)
            if verdict.state != "killed":
                print(f"in {mutant.mutation.function}\n{mutant.diff()}", flush=True)
                if options.show:
                    print(verdict.output)
    finally:
        pool.shutdown(cancel_futures=True)
        while not trees.empty():
            trees.get().close()
    tried = sum(states.values()) - states["excused"]
    share = states["killed"] / tried if tried else 1.0
    counts = ", ".join(f"{states[state]} {state}" for state in ("killed", "survived", "broken", "excused"))
    print(f"\n{counts}, in {(time.monotonic() - began) / 60:.1f} min: {share:.1%} of what is not excused was noticed")
    return 0 if share >= WANTED else 1


def line(mutant: Mutant, verdict: Verdict, tests: str) -> str:
    what = f"by {verdict.by}" if verdict.state == "killed" else tests
    return f"{verdict.state:<9}{mutant.place} {mutant.mutation.kind}, {verdict.seconds:.0f} s, {what}"


if __name__ == "__main__":
    sys.exit(main(arguments()))
