"""The front door: what `gen_durable` exports."""

from __future__ import annotations

import types

import gen_durable


def test_all_is_sorted_and_is_what_is_exported() -> None:
    """`__all__` lists every public name of the package, in order and once."""
    public = {
        name
        for name, value in vars(gen_durable).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert gen_durable.__all__ == sorted(public)


def test_everything_exported_has_a_docstring() -> None:
    """Each class and function explains itself."""
    for name in gen_durable.__all__:
        value = getattr(gen_durable, name)
        if isinstance(value, (type, types.FunctionType)):
            assert value.__doc__, name
