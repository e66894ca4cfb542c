"""The door: what is exported is what is named, and nothing of pytest comes with it."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import gen_durable.testing


def test_all_is_sorted_and_complete() -> None:
    door = gen_durable.testing
    assert list(door.__all__) == sorted(door.__all__)
    names = {n for n, v in vars(door).items() if not n.startswith("_") and not isinstance(v, ModuleType)}
    assert names - {"annotations"} == set(door.__all__)


def test_the_package_works_without_pytest() -> None:
    code = "import sys; sys.modules['pytest'] = None; import gen_durable.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
