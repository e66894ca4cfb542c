"""The sampler of Python mutations: what it changes, how it samples, and which mutants count as killed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tools.mutants.python.__main__ import PACKAGE, all_mutants, sample
from tools.mutants.python.excuses import Excuse, problems
from tools.mutants.python.mutations import Mutation, find_mutations
from tools.mutants.python.run import Tree

ROOT = Path(__file__).parents[2]
SOURCE = '''
"""A docstring."""
PAUSE: Final = 0.5

class Queue:
    __slots__ = ("_rows",)

    def take(self, count: int = 1) -> int:
        """Another."""
        log.info("taking %d", count)
        if count < 1 and self._rows:
            raise ValueError(f"{count + 1} is bad")
        try:
            self._rows.sort(key=len, reverse=True)
        except OSError:
            count = 0
            self.close()
        return max(count, 2)
'''


def kinds(source: str) -> set[tuple[str, str]]:
    return {(m.kind, m.text) for m in find_mutations(source)}


def test_lines_that_change_behaviour_are_mutated_and_others_are_not() -> None:
    """Log calls, docstrings, annotations, slots, messages of errors and numbers of a module stay as they are."""
    call, condition = "self._rows.sort(key=len, reverse=True)", "if count < 1 and self._rows:"
    assert kinds(SOURCE) == {
        ("swap comparison", condition),
        ("swap and/or", condition),
        ("negate condition", condition),
        ("off by one", condition),
        ("drop statement", 'raise ValueError(f"{count + 1} is bad")'),
        ("drop statement", call),
        ("drop keyword", call),
        ("flip constant", call),
        ("drop statement", "self.close()"),
        ("empty except", "count = 0"),
        ("off by one", "count = 0"),
        ("return None", "return max(count, 2)"),
        ("swap min/max", "return max(count, 2)"),
        ("off by one", "return max(count, 2)"),
    }
    for mutation in find_mutations(SOURCE):
        ast.parse(mutation.apply(SOURCE))


def test_a_seed_names_a_sample() -> None:
    mutants = all_mutants("engine/")
    assert sample(mutants, 7, 20) == sample(mutants, 7, 20) != sample(mutants, 8, 20)
    assert len({mutant.place for mutant in sample(mutants, 7, 20)}) == 20


def test_the_excuses_fit_the_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.mutants.python", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_excuse_outlives_a_shift_and_not_a_change() -> None:
    (first, *_) = find_mutations((PACKAGE / "json_codec.py").read_text("utf-8"))
    good = Excuse("json_codec.py", first.function, first.text, first.changed, "equivalent")
    assert list(problems([good], PACKAGE)) == []
    (problem,) = problems([Excuse("json_codec.py", first.function, "gone()", None, "equivalent")], PACKAGE)
    assert "no such mutation" in problem


@pytest.mark.long
def test_a_mutant_is_killed_by_a_test_that_fails_only_with_it(dsn: str) -> None:
    """A copy of the tree is changed, not the tree; a change without an effect survives."""
    before = (PACKAGE / "json_codec.py").read_text("utf-8")
    tests = ["tests/unit/test_json_codec_decode.py"]
    deadly = Mutation("drop statement", "", 1, (1, 1), "", 0, "", "raise RuntimeError\n")
    harmless = Mutation("drop statement", "", 1, (1, 1), "", 0, "", "# nothing\n")
    tree = Tree(dsn)
    try:
        assert tree.try_out("json_codec.py", deadly, tests, 10).state == "killed"
        assert tree.try_out("json_codec.py", harmless, tests, 10).state == "survived"
    finally:
        tree.close()
    assert (PACKAGE / "json_codec.py").read_text("utf-8") == before
