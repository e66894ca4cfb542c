"""What is installed is pinned by hash, each lower bound is one that is tested, and a release lists what it needs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
DEVELOPMENT = ("test-suite", "dev", "bench")


def requirements(*extras: str) -> list[Requirement]:
    """What the library needs, and some of its extras, except its own name."""
    texts = [*PYPROJECT["project"]["dependencies"], *(text for extra in extras for text in EXTRAS[extra])]
    return [one for one in map(Requirement, texts) if one.name != "gen-durable"]


RUNTIME = requirements(*(extra for extra in EXTRAS if extra not in DEVELOPMENT))
TESTS = [*RUNTIME, *requirements("test-suite"), *map(Requirement, PYPROJECT["build-system"]["requires"])]
LOCKED = {
    "constraints.txt": [*TESTS, *requirements("dev")],
    "constraints-lowest.txt": TESTS,
    "constraints-bench.txt": [one for one in requirements("bench") if one not in RUNTIME],
}


def pins(file: str) -> dict[str, Version]:
    """The versions of a constraints file."""
    found = re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE)
    return {canonicalize_name(name): Version(text) for name, text in found}


@pytest.mark.parametrize("file", LOCKED)
def test_every_pin_has_hashes(file: str) -> None:
    """One line per pin, then its hashes. No line names an index or an address."""
    text = (ROOT / file).read_text()
    assert not re.search(r"https?:|//|^--(index|extra|find|trusted)|@", text, re.MULTILINE)
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pins(file)) > 0
    for block in blocks:
        assert re.fullmatch(r"[^\n]+ \\\n( {4}--hash=sha256:[0-9a-f]{64}( \\)?\n)+", block), block[:100]


@pytest.mark.parametrize("file", LOCKED)
def test_every_requirement_is_pinned(file: str) -> None:
    """A dependency that was added without `make lock` is found here."""
    pinned = pins(file)
    for one in LOCKED[file]:
        assert one.specifier.contains(pinned[canonicalize_name(one.name)]), one


def test_every_lower_bound_is_the_tested_version() -> None:
    """`make test LOWEST=1` runs with the bounds themselves, and not with versions that others need."""
    pinned = pins("constraints-lowest.txt")
    for one in RUNTIME:
        (bound,) = one.specifier
        assert (one.name, bound.operator, Version(bound.version)) == (
            one.name,
            ">=",
            pinned[canonicalize_name(one.name)],
        )


def test_the_environment_is_the_locked_one() -> None:
    """`make venv` has installed the versions of one of the files."""
    locked = [pins("constraints.txt"), pins("constraints-lowest.txt")]
    assert {one.name: Version(version(one.name)) for one in RUNTIME} in [
        {one.name: pinned[canonicalize_name(one.name)] for one in RUNTIME} for pinned in locked
    ]


@pytest.mark.long
def test_the_sbom_lists_every_runtime_dependency(tmp_path: Path) -> None:
    """With versions and licences, and no tool of development; it conforms to the schema of CycloneDX."""
    from cyclonedx.schema import SchemaVersion  # takes a second and a half, in every process of a run
    from cyclonedx.validation.json import JsonStrictValidator

    script = ROOT / "scripts" / "sbom.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, stdout=subprocess.DEVNULL)
    (file,) = tmp_path.glob("gen_durable-*.cdx.json")
    text = file.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bom = json.loads(text)
    assert (bom["metadata"]["component"]["name"], bom["metadata"]["component"]["version"]) == (
        "gen-durable",
        version("gen-durable"),
    )
    listed = {canonicalize_name(one["name"]): one for one in bom["components"]}
    for one in RUNTIME:
        component = listed[canonicalize_name(one.name)]
        assert component["version"] == version(one.name)
        assert component["licenses"]
    assert {"httpcore", "cffi", "click"} & listed.keys() >= {"httpcore", "cffi"}  # what dependencies need
    assert not {"pytest", "ruff", "django", "mypy", "gen-durable"} & listed.keys()
    root = bom["metadata"]["component"]["bom-ref"]
    (direct,) = [one["dependsOn"] for one in bom["dependencies"] if one["ref"] == root]
    assert {canonicalize_name(ref.partition("==")[0]) for ref in direct} == {
        canonicalize_name(one.name) for one in RUNTIME
    }
