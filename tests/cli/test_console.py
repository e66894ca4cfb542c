"""What is printed where: whole lines in a pipe, and plain text where NO_COLOR asks for it."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer
from tests.support.commands import COMMAND, environment
from tests.support.rows import ended

from gen_durable.cli.console import exit_with_error
from gen_durable.errors import EmbeddedUnavailable, NotFound
from gen_durable.store.schema import Schema

ERROR = "no luck " * 40


@pytest.fixture
def failed(dsn: str, schema: str) -> None:
    """Two instances, of which one failed for a long reason."""
    rows = ended(1, status="failed", last_error=ERROR) + ended(2, result="1")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(Schema(schema).render(rows).encode())


def in_terminal(directory: Path, *arguments: str, **more: str) -> str:
    """What a command writes to a terminal."""
    ours, its = pty.openpty()
    process = subprocess.Popen([*COMMAND, *arguments], cwd=directory, env=environment(**more), stdout=its, stderr=its)
    os.close(its)
    written = b""
    try:
        while piece := os.read(ours, 65536):
            written += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    process.wait()
    return written.decode()


def test_nothing_is_cut_in_a_pipe(run: Any, dsn: str, schema: str, failed: None) -> None:
    """A line has the whole error, and no line is filled with spaces up to the longest one."""
    listed = run("ls", "--dsn", dsn, "--schema", schema, COLUMNS="").stdout.splitlines()
    assert listed[2].endswith(ERROR.strip())
    assert [line.rstrip() for line in listed] == listed
    shown = run("show", "1", "--dsn", dsn, "--schema", schema, COLUMNS="").stdout.splitlines()
    assert any(line.endswith(ERROR.strip()) for line in shown)


def test_no_color_means_plain_text(tmp_path: Path, dsn: str, schema: str, failed: None) -> None:
    """Nothing is coloured, bold or dim on a terminal with NO_COLOR; without it something is."""
    ls = ("ls", "--dsn", dsn, "--schema", schema)
    assert "\x1b[" in in_terminal(tmp_path, *ls, NO_COLOR="", TERM="xterm")
    for arguments in (ls, ("--help",)):
        assert "\x1b[" not in in_terminal(tmp_path, *arguments, NO_COLOR="1", TERM="xterm")


def test_the_log_of_a_server_is_indented_below_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    """It has many lines, which must not pass for lines of the command. Other errors are one line."""
    for error, lines in (
        (EmbeddedUnavailable("It did not start. Its log says:\nFATAL\n\x1bok"), ["  FATAL", "  \\x1bok"]),
        (NotFound("no a\nb"), []),
    ):
        with pytest.raises(typer.Exit):
            exit_with_error(error, 1)
        first, *others = capsys.readouterr().err.splitlines()
        assert first.startswith("gen-durable: ")
        assert others == lines
