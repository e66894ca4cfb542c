"""Write the SBOM of a release, CycloneDX JSON, into a directory. Run by `make release-check`.

cyclonedx-py describes this environment. What the library and its extras do not need is left out: pytest and ruff are
no part of a release. Every component must have a version and a licence.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parent.parent
NAME: Final = "gen-durable"
DEVELOPMENT: Final = frozenset({"all", "test-suite", "dev", "bench"})  # `all` is the sum of the others


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit("usage: scripts/sbom.py DIRECTORY")
    bom = make_sbom()
    file = Path(arguments[0]) / f"gen_durable-{version(NAME)}.cdx.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(bom, indent=2) + "\n")
    print(f"{file}: {len(bom['components'])} components")


def make_sbom() -> dict[str, Any]:
    """The SBOM of the library with all extras, with the versions of this environment."""
    tool = Path(sys.executable).parent / "cyclonedx-py"
    command = [str(tool), "environment", "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible"]
    done = subprocess.run([*command, "--of", "JSON", sys.executable], check=True, stdout=subprocess.PIPE)
    bom: dict[str, Any] = json.loads(done.stdout)
    needed = find_needed_packages()
    bom["components"] = [one for one in bom["components"] if canonicalize_name(one["name"]) in needed]
    _check_components(bom["components"], needed)
    names = {one["bom-ref"]: canonicalize_name(one["name"]) for one in bom["components"]}
    root, direct = bom["metadata"]["component"]["bom-ref"], find_direct_dependencies()
    bom["dependencies"] = [
        one
        | {
            "dependsOn": [
                ref for ref in one.get("dependsOn", []) if names.get(ref) in (direct if one["ref"] == root else needed)
            ]
        }
        for one in bom["dependencies"]
        if one["ref"] == root or one["ref"] in names
    ]
    return bom


def find_direct_dependencies() -> set[str]:
    """The packages that pyproject.toml names for the library and its extras."""
    return {name for name, _ in _find_required({(NAME, extra) for extra in _runtime_extras()})}


def find_needed_packages() -> set[str]:
    """The packages that the library and its extras need here, and those that these need."""
    waiting = {(NAME, extra) for extra in _runtime_extras()}
    seen: set[tuple[str, str]] = set()
    while waiting:
        seen |= waiting
        waiting = _find_required(waiting) - seen
    return {name for name, _ in seen} - {NAME}


def _runtime_extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [extra for extra in ("", *project["optional-dependencies"]) if extra not in DEVELOPMENT]


def _find_required(packages: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What packages require on this platform, each with an extra; "" is the package without extras."""
    found: set[tuple[str, str]] = set()
    for name, extra in packages:
        for required in map(Requirement, requires(name) or []):
            if required.marker is None or required.marker.evaluate({"extra": extra}):
                found |= {(str(canonicalize_name(required.name)), one) for one in ("", *required.extras)}
    return found


def _check_components(components: list[dict[str, Any]], needed: set[str]) -> None:
    missing = needed - {canonicalize_name(one["name"]) for one in components}
    unclear = [one["name"] for one in components if not one.get("version") or not one.get("licenses")]
    if missing or unclear:
        raise SystemExit(f"the SBOM lacks {sorted(missing)}; without a version or a licence are {sorted(unclear)}")


if __name__ == "__main__":
    main(sys.argv[1:])
