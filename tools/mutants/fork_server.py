"""A process in which all is imported already. It forks for each run of tests: that is most of what a short run costs.

In: one JSON object per line on stdin: the tests, the SQL to install instead of the package's own (or null), a file for
what pytest says, and how many seconds it may take. Out: pytest's exit code per line, or -1 when time was up.

The SQL is installed by `migrate`, which runs in the tests' own process, so it is enough to change it there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    import asyncpg  # noqa: F401
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401

    import gen_durable.sync
    import gen_durable.testing  # noqa: F401

    for line in sys.stdin:
        job: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setpgrp()
            os._exit(run(job))
        print(wait(child, job["patience"]), flush=True)


def run(job: dict[str, Any]) -> int:
    import pytest

    from gen_durable.store import sql_files

    with Path(job["output"]).open("w") as out:
        for stream in (0, 1, 2):
            os.dup2(out.fileno(), stream)
        if job["sql"] is not None:
            sql_files._SQL = Path(job["sql"])
        # What is imported already is not rewritten: its asserts say less, and nobody reads them here.
        quiet = ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:cacheprovider"]
        code = int(pytest.main(["-x", "-q", "-p", "tools.mutants.plugin", *quiet, *job["tests"]]))
        sys.stdout.flush()
    return code


def wait(child: int, patience: float) -> int:
    until = time.monotonic() + patience
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


if __name__ == "__main__":
    main()
