"""The front page: help that teaches, a version, and a clear word when the extra is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest

COMMANDS = [
    "demo",
    "migrate",
    "worker",
    "ls",
    "count",
    "show",
    "history",
    "signal",
    "cancel",
    "retry",
    "rm",
    "doctor",
    "limits",
    "graph",
]


def test_help_names_every_command_and_says_what_to_do_first(run: Any) -> None:
    shown = run("--help")
    assert shown.returncode == 0
    for command in COMMANDS:
        assert f"gen-durable {command}" in shown.stdout
    assert shown.stdout.index("gen-durable demo") < shown.stdout.index("gen-durable migrate")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_of_its_own(run: Any, command: str) -> None:
    shown = run(command, "--help")
    # No name of a class of ours: the reader does not know them.
    assert set(re.findall(r"\b[A-Z][a-z]+[A-Z][a-z]\w*", shown.stdout)) <= {"PostgreSQL", "PgBouncer"}
    assert shown.returncode == 0
    assert f"gen-durable {command}" in shown.stdout


def test_version(run: Any) -> None:
    assert run("--version").stdout.strip() == f"gen-durable {version('gen-durable')}"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from gen_durable.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "gen-durable: the command line needs the extra `cli`. Run: pip install 'gen-durable[cli]'"
    ]
