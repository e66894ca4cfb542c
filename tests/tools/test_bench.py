"""What measures still runs: each of it once, as small as it gets. Nothing is said here about speed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(*arguments: str, may_judge: bool = False) -> str:
    """Run it on a server of its own; `may_judge`: 1 is a verdict that a run so short does not bear."""
    environment = {name: value for name, value in os.environ.items() if name != "GEN_DURABLE_TEST_DSN"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in ((0, 1) if may_judge else (0,)), done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_the_benchmark(tmp_path: Path) -> None:
    """`make bench`: two of its scenarios, beside their ceilings."""
    file = tmp_path / "bench.json"
    run(
        "tools.bench", "--size", "small", "--scenario", "chain", "--scenario", "drain", "--no-plot", "--json", str(file)
    )
    rows = {row["name"]: row for row in json.loads(file.read_text())["results"]}
    for name in ("5-step chain", "history on, against off", "no-op jobs"):
        assert rows[name]["value"] > 0
        assert rows[name]["ratio"] > 0


def test_what_calls_cost_on_a_larger_table(tmp_path: Path) -> None:
    """`make bench-scale`, without its long reader."""
    file = tmp_path / "scale.json"
    small = ("--sizes", "2k", "--executing", "0", "--rounds", "1", "--reader", "0", "--obstacles", "0")
    assert "flush done" in run("tools.bench.scale", *small, "--no-plot", "--json", str(file))


def test_what_looking_costs() -> None:
    """`make bench-look`."""
    assert "metadata, none" in run("tools.bench.listing", "--rows", "10k", "--rounds", "1", may_judge=True)


def test_the_soak(tmp_path: Path) -> None:
    """`make soak`: all that is inserted ends, and the doctor finds nothing."""
    file = tmp_path / "soak.json"
    short = ("--hours", "0.001", "--peak-seconds", "1.5", "--workers", "1")
    run("tools.bench.soak", *short, "--no-plot", "--json", str(file), may_judge=True)
    found: dict[str, Any] = json.loads(file.read_text())
    verdict = {line["what"]: line for line in found["verdict"]}
    assert found["instances"] > 0
    for what in ("inserted, not ended", "ended badly", "findings of the doctor"):
        assert verdict[what]["good"], verdict[what]
