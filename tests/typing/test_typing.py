"""Typing is tested like behaviour: programs of users, read by both checkers in their strictest mode.

`good/` must pass without a word. In `bad/`, each line that ends in `# E` holds one mistake, and the checkers must
complain about exactly these lines: a mistake is found where the user made it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
GOOD = sorted(HERE.glob("good/*.py"))
BAD = sorted(HERE.glob("bad/*.py"))
MARK = re.compile(r"# E$")

Complaints = dict[Path, dict[int, list[str]]]


def mypy(cache: Path) -> Complaints:
    """What mypy says, by file and line."""
    options = ["--strict", "--config-file=", "--explicit-package-bases", "--no-error-summary", "--no-color-output"]
    printed = run("mypy", *options, f"--cache-dir={cache}", "good", "bad")
    found: Complaints = defaultdict(lambda: defaultdict(list))
    for line in printed.splitlines():
        match = re.fullmatch(r"(.+?):(\d+): (error|note): (.+)", line)
        assert match is not None, f"mypy did not run: {printed}"
        if match[3] == "error":
            found[HERE / match[1]][int(match[2])].append(match[4])
    return found


def pyright(_: Path) -> Complaints:
    """What pyright says, by file and line."""
    printed = run("pyright", "--project", str(HERE), "--pythonpath", sys.executable, "--outputjson")
    report: dict[str, Any] = json.loads(printed[printed.index("{") :])
    assert report["summary"]["filesAnalyzed"] == len(GOOD) + len(BAD), report["summary"]
    found: Complaints = defaultdict(lambda: defaultdict(list))
    for one in report["generalDiagnostics"]:
        found[Path(one["file"])][one["range"]["start"]["line"] + 1].append(one["message"])
    return found


def run(checker: str, *arguments: str) -> str:
    environment = os.environ | {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    environment.pop("MYPYPATH", None)
    done = subprocess.run(
        [sys.executable, "-m", checker, *arguments],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode in (0, 1), f"{checker} did not run: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module", params=[mypy, pyright], ids=["mypy", "pyright"])
def complaints(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Complaints:
    """All that one checker says about all programs; it runs once."""
    said: Complaints = request.param(tmp_path_factory.mktemp("cache"))
    return said


@pytest.mark.parametrize("program", GOOD, ids=lambda path: path.stem)
def test_a_right_program_passes(program: Path, complaints: Complaints) -> None:
    """Neither checker finds anything to say about a program that is right."""
    assert not shown(complaints.get(program, {}))


@pytest.mark.parametrize("program", BAD, ids=lambda path: path.stem)
def test_each_mistake_is_found_on_its_line(program: Path, complaints: Complaints) -> None:
    """Both checkers complain about every marked line and about no other."""
    found = complaints.get(program, {})
    lines = enumerate(program.read_text().splitlines(), start=1)
    expected = {number: line.strip() for number, line in lines if MARK.search(line)}
    missed = {number: line for number, line in expected.items() if number not in found}
    assert not missed, "mistakes that were not found"
    assert not shown({number: said for number, said in found.items() if number not in expected})


def test_there_are_enough_mistakes() -> None:
    """The marks are there: a program whose marks were lost would pass for the wrong reason."""
    for program in BAD:
        assert sum(bool(MARK.search(line)) for line in program.read_text().splitlines()) >= 10, program.name


@pytest.mark.parametrize("program", GOOD, ids=lambda path: path.stem)
def test_a_right_program_can_be_imported(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the checkers accept is accepted at run time too: machines, jobs and signals can be made."""
    monkeypatch.syspath_prepend(HERE)
    name = f"good.{program.stem}"
    spec = importlib.util.spec_from_file_location(name, program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)


def shown(found: dict[int, list[str]]) -> list[str]:
    return [f"line {number}: {message}" for number, said in sorted(found.items()) for message in said]
