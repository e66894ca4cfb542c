"""The short form of `make fuzz-sizes`, from a fixed seed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gen_durable.json_codec import written_out_size

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the tools are not installed
from tools.fuzz_sizes.program import draw_program  # noqa: E402
from tools.fuzz_sizes.values import KINDS, Value  # noqa: E402


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_instance_ends_as_expected(tmp_path: Path) -> None:
    """Ten seconds of programs. The heartbeat may be later than a second here, beside other tests."""
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tools.fuzz_sizes", "--minutes", "0.17", "--seed", "5"),
            *("--latest", "20", "--under-way", "30000000", "--json", figures),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert sum(found["ended"].values()) > 20, done.stdout
    assert found["heartbeats"] > 20, done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_as_large_as_they_say(kind: str) -> None:
    for size in (1000, 994_000):
        value = Value(kind, size, 7)
        assert 0.6 * size < written_out_size(msgspec.json.encode(value.build())) <= size
        assert value.matches(msgspec.json.decode(msgspec.json.encode(value.build())))


def test_a_seed_draws_the_same_programs() -> None:
    first, second = ([draw_program(random.Random(n), 1.0) for n in range(20)] for _ in range(2))
    assert first == second
