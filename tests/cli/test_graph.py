"""`gen-durable graph`: the edges of a machine, as text and as a diagram."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SHOP = "gen_durable.cli.demo.machines"


def test_text(run: Any) -> None:
    done = run("graph", f"{SHOP}:Checkout")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Checkout, version 1\n")
    assert "await payment or timeout -> collect" in done.stdout
    assert done.stderr == ""


def test_mermaid(run: Any) -> None:
    done = run("graph", f"{SHOP}:Checkout", "--mermaid")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("stateDiagram-v2\n")


def test_a_job_has_a_graph_too(run: Any) -> None:
    assert "stocktake, version 1" in run("graph", f"{SHOP}:stocktake").stdout


def test_what_is_no_machine_is_refused(run: Any, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from gen_durable import Machine\nnumber = 3\nclass Plain: pass\n")
    for name in ("number", "Plain", "Machine"):
        done = run("graph", f"shop:{name}")
        assert done.returncode == 2
        assert "Name a subclass of" in done.stderr
