"""The short form of `make chaos`: every kind of fault that needs neither root nor a tool, from a fixed seed.

`make test` has tests/flows for killed workers, lost answers and held locks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAULTS = "sigkill,sigstop,rolling,postgres,proxy,locks"


def chaos(tmp_path: Path, *arguments: str) -> tuple[int, str, dict[str, object]]:
    """A run: its exit status, what it said, its figures."""
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "tools.chaos", "--no-mount", "--load", "0.3", "--json", figures, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, json.loads(figures.read_text()) if figures.exists() else {}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_is_lost(tmp_path: Path) -> None:
    """Twenty-five seconds of all kinds, one of each at least: the verdict is good in every line."""
    status, said, figures = chaos(
        tmp_path, "--minutes", "0.42", "--pace", "1.5", "--seed", "1", "--workers", "2", "--faults", FAULTS
    )
    assert status == 0, said
    faults = figures["faults"]
    assert isinstance(faults, dict)
    assert len(faults) == 15, said
    assert isinstance(figures["transitions"], int)
    assert figures["transitions"] > 200, said


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_clean_rolling_restart_runs_nothing_again(tmp_path: Path) -> None:
    """Workers are replaced one after the other under load: each execution has its outcome, no attempt is burned.

    Then every check of the verdict is shown some harm, and finds it.
    """
    status, said, figures = chaos(
        tmp_path, "--minutes", "0.2", "--pace", "2", "--seed", "2", "--workers", "2", "--faults", "rolling", "--prove"
    )
    assert status == 0, said
    assert "proof" in said
    assert figures["repeated"] == 0
    assert figures["leases"] == 0
    assert figures["faults"] == {"rolling": figures["faults_total"]}
