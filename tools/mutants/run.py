"""One mutant: a copy of the SQL with one piece changed, and the tests that must notice.

Given a mutant and a fork server to run tests in, it returns whether the tests failed, and which.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tools.mutants.catalogue_reader import ROOT, SQL, Mutant

PATIENCE = 300.0  # seconds for the tests of one mutant
FAILED = re.compile(r"^(?:FAILED|ERROR) (?P<test>tests/\S+?\.py::\w+(?:\[[^\]\n]*\])?)", re.MULTILINE)
# SQL that the server does not understand fails every test: that is a slip of the catalogue, not a proof.
NONSENSE = re.compile(
    r"exceptions\.(?:PostgresSyntaxError|Undefined\w+Error|Ambiguous\w+Error|DatatypeMismatchError|GroupingError)"
)
_TESTS_FAILED = 1  # pytest's own code for it: anything else is a run that proves nothing


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a run. Broken: the tests could not be run, or not to their end."""

    state: Literal["killed", "survived", "broken"]
    by: str
    seconds: float
    output: str


class ForkServer:
    """Runs tests one after the other, in forks of one process."""

    def __init__(self, dsn: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.mutants.fork_server"],
            cwd=ROOT,
            env=os.environ | {"GEN_DURABLE_TEST_DSN": dsn},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def try_out(self, mutant: Mutant) -> Verdict:
        """Run the tests of a mutant, up to the first that fails."""
        with tempfile.TemporaryDirectory(prefix="gen_durable_mutant_") as folder:
            copy = Path(folder) / "sql"
            shutil.copytree(ROOT / SQL, copy)
            target = copy / mutant.file.relative_to(SQL)
            target.write_text(mutant.apply(target.read_text("utf-8")), "utf-8")
            return self.run(mutant.tests, copy)

    def run(self, tests: Sequence[str], sql: Path | None = None, patience: float = PATIENCE) -> Verdict:
        """Run tests on other SQL than the package's."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="gen_durable_mutant_") as folder:
            output = Path(folder) / "output"
            job = {
                "tests": tests,
                "sql": None if sql is None else str(sql),
                "output": str(output),
                "patience": patience,
            }
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            if not answer:
                raise RuntimeError("the process that runs the tests has died")
            return _judge(int(answer), output.read_text("utf-8", "replace"), time.monotonic() - began)


def _judge(code: int, output: str, seconds: float) -> Verdict:
    failed = FAILED.search(output)
    by = failed["test"] if failed else ""
    if code == 0:
        return Verdict("survived", by, seconds, output)
    if code == _TESTS_FAILED and failed and not NONSENSE.search(output):
        return Verdict("killed", by, seconds, output)
    return Verdict("broken", by, seconds, output)
