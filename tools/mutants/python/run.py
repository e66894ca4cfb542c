"""One mutation: a copy of the tree with one line changed, and tests up to the first that fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.mutants.catalogue_reader import ROOT
from tools.mutants.python.mutations import Mutation
from tools.mutants.run import FAILED, Verdict

COPIED: Final = ("src", "tests", "tools", "docs", "examples", "scripts")
TEST_TIMEOUT: Final = 45  # seconds for one test, which pytest-timeout then fails
_NO_TESTS: Final = 5  # pytest's own code for it


class Tree:
    """A copy of the repository, in which mutations are tried one after the other."""

    _confirmed: dict[str, bool] = {}  # noqa: RUF012 - which tests pass on the unchanged code: shared by all copies
    _lock = threading.Lock()

    def __init__(self, dsn: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gdm_", ignore_cleanup_errors=True)
        self.root = Path(self._folder.name)
        self.root.chmod(0o755)  # tests run programs as another account
        self._env = os.environ | {
            "GEN_DURABLE_TEST_DSN": dsn,
            "PYTHONPATH": f"{self.root / 'src'}{os.pathsep}{self.root}",
        }
        self._env["TMPDIR"] = str(self.root / "t")
        (self.root / "t").mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "results", ".venvs")
        for name in COPIED:
            shutil.copytree(ROOT / name, self.root / name, ignore=ignored)
        for path in ROOT.iterdir():
            if path.is_file():
                shutil.copy(path, self.root / path.name)
        self._writes = 0

    def close(self) -> None:
        self._end_processes()
        self._folder.cleanup()

    def try_out(self, file: str, mutation: Mutation, tests: Sequence[str], budget: float) -> Verdict:
        """Run tests on a mutation. A test that fails without it as well does not count, and the next ones are run."""
        path = self.root / "src" / "gen_durable" / file
        source = path.read_text("utf-8")
        left = list(tests)
        seconds = 0.0
        while True:
            self._write(path, mutation.apply(source))
            try:
                verdict = self._run(left, 60 + 4 * budget)
            finally:
                self._write(path, source)
            seconds += verdict.seconds
            gone = [test for test in left if f"/{test}\n" in verdict.output]
            if verdict.state == "broken" and gone:  # the record is older than the tests
                left = [test for test in left if test not in gone]
                continue
            if verdict.state != "killed" or self._passes_unchanged(verdict.by):
                return Verdict(verdict.state, verdict.by, seconds, verdict.output)
            name = verdict.by.partition("[")[0]
            left = left[left.index(name) + 1 :] if name in left else []
            if not left:
                return Verdict("survived", "", seconds, verdict.output)

    def _passes_unchanged(self, test: str) -> bool:
        if not test:
            return True  # nothing could be imported
        with self._lock:
            known = self._confirmed.get(test)
        if known is None:
            known = self._run([test], 120).state == "survived"
            with self._lock:
                self._confirmed[test] = known
        return known

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, "utf-8")
        # Python compares times in seconds: each text needs a time of its own, or old bytecode is used.
        self._writes += 1
        os.utime(path, (1e9 + self._writes, 1e9 + self._writes))

    def _run(self, tests: Sequence[str], patience: float) -> Verdict:
        began = time.monotonic()
        output = self.root / "output"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=short"]
        command += ["-o", f"timeout={TEST_TIMEOUT}", "--basetemp", str(self.root / "t" / "p"), *tests]
        with output.open("w") as out:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(patience)
            except subprocess.TimeoutExpired:
                code = None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._end_processes()
        return _judge(code, output.read_text("utf-8", "replace"), time.monotonic() - began)

    def _end_processes(self) -> None:
        """Kill what tests left running, for example a Postgres of their own: all that names this folder."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.root).encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                    os.kill(int(path.parent.name), signal.SIGKILL)


def _judge(code: int | None, output: str, seconds: float) -> Verdict:
    """A run that does not end, and code that cannot be imported, are noticed as well. A test that is gone is not."""
    failed = FAILED.search(output)
    by = failed["test"] if failed else ""
    if code == 0:
        return Verdict("survived", by, seconds, output)
    if code == _NO_TESTS or "ERROR: not found" in output or "ERROR: file or directory not found" in output:
        return Verdict("broken", by, seconds, output)
    return Verdict("killed", by, seconds, output)
