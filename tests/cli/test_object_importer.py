"""MODULE:NAME, and what is said about each way to get it wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gen_durable.cli.object_importer import import_object
from gen_durable.errors import ConfigError

PROGRAM = """
from gen_durable import Durable, Worker, job

number = 3

@job
async def nothing(n: int) -> int:
    return n

def wrong():
    return number

def nearly():
    return Worker(Durable("postgresql://127.0.0.1:1/x"), jobs=[nothing])
"""


@pytest.fixture(autouse=True)
def program(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    (tmp_path / "ill.py").write_text("1 / 0\n")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("shop", "'shop' is not of the form MODULE:NAME. Write for example shop.main:worker."),
        ("shop:", "is not of the form MODULE:NAME"),
        (":worker", "is not of the form MODULE:NAME"),
        ("shpo:worker", "There is no module 'shpo'"),
        ("json.main:worker", "There is no module 'json.main'"),
        ("json:worker", "json has no 'worker'"),
        ("json:dmps", "json has no 'dmps'. Did you mean 'dumps'?"),
        ("json:dumps.more", "json.dumps has no 'more'"),
    ],
)
def test_each_part_of_the_text_can_be_wrong(target: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        import_object(target)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("shpo:worker", "There is no module 'shpo'"),
        ("shop:number", "shop:number is a int. Name a Worker, or a function that returns one."),
        ("shop:Worker", "is the class Worker itself"),
        ("json:dumps", "json:dumps needs arguments (obj). Name a Worker, or a function without arguments"),
        ("shop:wrong", "The function returned a int. It must return a Worker."),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run: Any, target: str, words: str) -> None:
    done = run("worker", target)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("target", "words"), [("broken:worker", "no_such_package"), ("ill:worker", "ZeroDivisionError")]
)
def test_an_error_inside_of_the_module_is_shown_whole(run: Any, target: str, words: str) -> None:
    done = run("worker", target)
    assert done.returncode not in (0, 2)
    assert "Traceback" in done.stderr
    assert words in done.stderr


def test_a_database_that_is_down_is_exit_code_1(run: Any) -> None:
    done = run("worker", "shop:nearly")
    assert done.returncode == 1
    assert "not reachable" in done.stderr
