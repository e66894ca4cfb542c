"""The names that `gen_durable` exports."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

import gen_durable
from gen_durable import errors

ROOT = Path(__file__).parents[2]
MOST = 36
ALIASES = {"Duration"}


def test_all_is_sorted_and_is_what_is_exported() -> None:
    """`__all__` lists every public name of the package, in order and once."""
    public = {
        name
        for name, value in vars(gen_durable).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert gen_durable.__all__ == sorted(public)


def test_the_list_is_short() -> None:
    """The package exports what users type every day; other names stay in their modules."""
    assert len(gen_durable.__all__) <= MOST


def test_errors_live_in_their_module() -> None:
    """An error has one import path: `gen_durable.errors`."""
    tree = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert not tree & set(gen_durable.__all__)


@pytest.mark.parametrize("name", gen_durable.__all__)
def test_each_name_is_documented(name: str) -> None:
    """Each has a docstring, and a row of its own in the reference."""
    value = getattr(gen_durable, name)
    assert name in ALIASES or value.__doc__
    reference = (ROOT / "docs/reference/api.md").read_text()
    assert re.search(rf"^\| `{name}` \|", reference, re.MULTILINE)


def test_each_error_is_in_the_reference() -> None:
    """The table of errors names all of them."""
    reference = (ROOT / "docs/reference/api.md").read_text()
    for name, value in vars(errors).items():
        if isinstance(value, type):
            assert f"`{name}`" in reference or f".{name}`" in reference, name
