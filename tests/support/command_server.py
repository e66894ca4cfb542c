"""A process that has imported the command line, and forks for each command: an import costs more than most commands.

Each line of its input is a command as JSON: its arguments, directory, environment, and the files to write to. Each line
of its output is the exit code. A fork runs the command as `python -m gen_durable.cli` does, and ends as an interpreter
ends.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
from typing import Any

from gen_durable.cli import main

USUAL = ["gen_durable.cli.app", "gen_durable.worker", "asyncpg", "uvloop", "rich.markdown", "rich.table"]
LAZY = ["typer.rich_utils", "typer._adapters"]  # what typer itself imports late


def next_command() -> dict[str, Any] | None:
    """Serve until the input ends; in a fork, return the command to run."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return json.loads(line)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def take_over(command: dict[str, Any]) -> None:
    """Make this process look as if it had been started for the command."""
    files = [(os.devnull, os.O_RDONLY), *((path, os.O_WRONLY | os.O_CREAT) for path in command["outputs"])]
    for number, (path, mode) in enumerate(files):
        opened = os.open(path, mode)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(command["directory"])
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.argv = ["gen-durable", *command["arguments"]]
    sys.path[0] = command["directory"]


if __name__ == "__main__":
    for module in [*USUAL, *LAZY]:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy all of this
    received = next_command()
    if received is not None:
        take_over(received)
        main()
