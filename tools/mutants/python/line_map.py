"""Which tests execute a line: recorded once by `tracer`, kept in a file, and asked for each mutation.

Tests that only run the package in other processes are not recorded. For a line that no test is known to execute, and
for one that the import executes, all tests that execute its file are candidates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.mutants.catalogue_reader import ROOT
from tools.mutants.python.mutations import Mutation
from tools.mutants.python.tracer import key_of

PACKAGE: Final = ROOT / "src" / "gen_durable"
RECORD: Final = ROOT / ".gen_durable" / "mutants" / "lines.json"
LEFT_OUT: Final = ("docs", "tools", "typing", "budgets")  # folders of tests that look at texts, or measure
LONGEST_TEST: Final = 20.0  # seconds
OWN_PROCESSES: Final = ("embedded",)  # folders whose code runs in other processes, too: all of their tests count


@dataclass(frozen=True, slots=True)
class LineMap:
    """The record of each test: its duration, and its lines by file."""

    tests: dict[str, dict[str, Any]]

    def find_tests(self, file: str, mutation: Mutation, source: str, budget: float) -> tuple[list[str], bool]:
        """The tests for a mutation, the likeliest first, as many as run in `budget` seconds; and whether any of them
        is known to execute the line.
        """
        lines = source.splitlines()
        first, last = mutation.lines
        keys = {key_of(mutation.function, line) for line in lines[first - 1 : max(last, mutation.line)]}
        known = [test for test, entry in self.tests.items() if _executes(entry, file, keys, mutation)]
        near = [test for test, entry in self.tests.items() if file in entry["lines"]]
        candidates = known or near or list(self.tests)
        if (folder := Path(file).parts[0]) in OWN_PROCESSES:
            candidates = [test for test in self.tests if Path(test).parts[1] == folder]
        chosen: list[str] = []
        spent = 0.0
        for test in self._order(file, candidates):
            seconds = self.tests[test]["seconds"]
            if seconds <= LONGEST_TEST and spent + seconds <= budget:
                chosen.append(test)
                spent += seconds
        return chosen, bool(known)

    def _order(self, file: str, tests: list[str]) -> list[str]:
        """Tests that execute a line of the file that those before them do not execute come first: the constructor of
        a class is executed by many tests, and what it sets is used by few of them.
        """
        seen: set[str] = set()
        first: list[str] = []
        others: list[str] = []
        for test in sorted(tests, key=lambda test: (_rank(file, test), self.tests[test]["seconds"])):
            lines = self.tests[test]["lines"].get(file, [])
            (others if seen.issuperset(lines) else first).append(test)
            seen.update(lines)
        return first + others


def load() -> LineMap:
    if not RECORD.exists():
        return LineMap({})
    stored = json.loads(RECORD.read_text("utf-8"))
    keys, tests = stored["keys"], stored["tests"]
    for entry in tests.values():
        entry["lines"] = {file: [keys[n] for n in numbers] for file, numbers in entry["lines"].items()}
    return LineMap(tests)


def _store(tests: dict[str, dict[str, Any]]) -> None:
    """Each line is written once, and the tests refer to it by its number: they share most of their lines."""
    numbers: dict[str, int] = {}
    short = {
        test: {
            "seconds": round(entry["seconds"], 2),
            "lines": {
                file: [numbers.setdefault(key, len(numbers)) for key in keys] for file, keys in entry["lines"].items()
            },
        }
        for test, entry in tests.items()
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps({"keys": list(numbers), "tests": short}), "utf-8")


def record(tests: Sequence[str], dsn: str, jobs: int) -> LineMap:
    """Run tests under the tracer, and add what they execute to the record."""
    chosen = list(tests) or [str(p) for p in sorted((ROOT / "tests").iterdir()) if _has_tests(p)]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-n", str(jobs), "--dist", "worksteal"]
    with tempfile.TemporaryDirectory(prefix="gen_durable_trace_") as folder:
        subprocess.run(
            [*command, "-p", "tools.mutants.python.tracer", "-p", "no:cacheprovider", "--tb=no", *chosen],
            cwd=ROOT,
            env=os.environ | {"MUTANTS_TRACE": folder, "GEN_DURABLE_TEST_DSN": dsn, "PYTHONPATH": str(ROOT)},
            check=False,  # a test that is too slow under the tracer fails, and its lines are known all the same
        )
        known = load().tests
        fresh: dict[str, dict[str, Any]] = {}
        for path in sorted(Path(folder).glob("*.json")):
            for test, entry in json.loads(path.read_text("utf-8")).items():
                _merge(fresh.setdefault(test, {"seconds": 0.0, "lines": {}}), entry)
    _store(known | fresh)
    return load()


def _merge(into: dict[str, Any], entry: dict[str, Any]) -> None:
    """Cases of one test may run in several processes."""
    into["seconds"] += entry["seconds"]
    for file, keys in entry["lines"].items():
        into["lines"][file] = sorted({*into["lines"].get(file, []), *keys})


def _has_tests(path: Path) -> bool:
    return path.is_dir() and path.name not in LEFT_OUT and any(path.rglob("test_*.py"))


def _executes(entry: dict[str, Any], file: str, keys: set[str], mutation: Mutation) -> bool:
    found = entry["lines"].get(file)
    if found is None:
        return False
    return not mutation.function or not keys.isdisjoint(found)  # the top of a module is executed by its import


_OTHERS: Final = 4


def _rank(file: str, test: str) -> int:
    """Tests that mirror the file come first, then those of its folder, of workers and of flows."""
    path = Path(test.partition("::")[0])
    module = Path(file)
    folder = path.parts[1]
    if module.stem in path.stem:
        return 0
    if len(module.parts) > 1 and folder == module.parts[0]:
        return 1
    return {"worker": 2, "client": 2, "flows": 3, "security": 3}.get(folder, _OTHERS)
