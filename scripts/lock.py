"""Write the constraints files, with the hashes of every file of each version. Run by `make lock`.

- constraints.txt: the development environment, with the versions that are there already. `--upgrade` renews them.
- constraints-bench.txt: the additions of the benchmarks.
- constraints-lowest.txt: the lowest versions that pyproject.toml allows, for `make test LOWEST=1`. Packages that only
  other packages need are the newest that fit.

No file names an index: the hashes say what may be installed, wherever it comes from.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
DEVELOPMENT: Final = ROOT / "constraints.txt"
BENCH: Final = ROOT / "constraints-bench.txt"
LOWEST: Final = ROOT / "constraints-lowest.txt"
NOT_RUNTIME: Final = ("test-suite", "dev", "bench")
HEADERS: Final = {
    DEVELOPMENT: "# Versions and hashes of the development environment, written by `make lock`.\n"
    "# Not needed to use the library.\n",
    BENCH: "# What the benchmarks need beside constraints.txt, written by `make lock`.\n",
    LOWEST: "# The lowest versions that pyproject.toml allows, for `make test LOWEST=1`, written by `make lock`.\n",
}


def main(arguments: list[str]) -> None:
    upgrade = arguments == ["--upgrade"]
    if arguments and not upgrade:
        raise SystemExit("usage: scripts/lock.py [--upgrade]")
    with tempfile.TemporaryDirectory() as directory:
        kept, bounds = Path(directory) / "kept.txt", Path(directory) / "bounds.txt"
        kept.write_text("" if upgrade else "\n".join(_pins(DEVELOPMENT) | _pins(BENCH)))
        _compile(DEVELOPMENT, ["--extra", "all", "--extra", "dev"], kept)
        _compile(BENCH, ["--extra", "bench"], DEVELOPMENT, kept)
        _drop_shared(BENCH, _pins(DEVELOPMENT))
        bounds.write_text("\n".join(_lower_bounds()))
        _compile(LOWEST, ["--extra", "all", "--extra", "test-suite", "--resolution", "lowest-direct"], bounds)


def _compile(written: Path, options: list[str], *constraints: Path) -> None:
    command = ["uv", "pip", "compile", "pyproject.toml", "--universal", "--python-version", "3.11", "--quiet"]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-config", "--upgrade"]
    for one in constraints:
        command += ["--constraints", str(one)]
    path = Path(sys.executable).parent / command[0]
    done = subprocess.run([str(path), *command[1:], *options], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    written.write_text(HEADERS[written] + done.stdout)


def _pins(file: Path) -> set[str]:
    """The lines `name==version` of a constraints file."""
    found = re.findall(r"^([A-Za-z0-9._-]+==[^\s\\;]+)", file.read_text() if file.exists() else "", re.MULTILINE)
    return set(found)


def _lower_bounds() -> list[str]:
    """The bounds of the library and its extras as pins. Otherwise a package that only others need could raise one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *(one for extra in extras if extra not in NOT_RUNTIME for one in extras[extra])]
    return [one.partition(";")[0].replace(">=", "==") for one in texts if ">=" in one]


def _drop_shared(file: Path, shared: set[str]) -> None:
    """Leave out of a constraints file what another one pins."""
    blocks = re.split(r"^(?=[A-Za-z0-9])", file.read_text(), flags=re.MULTILINE)
    file.write_text("".join(one for one in blocks if not any(one.startswith(f"{pin} ") for pin in shared)))


if __name__ == "__main__":
    main(sys.argv[1:])
