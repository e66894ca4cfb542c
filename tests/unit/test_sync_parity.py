"""`SyncDurable` and `SyncHandle` have the options and methods of `Durable` and `Handle`."""

from __future__ import annotations

import inspect

import pytest

from gen_durable import Durable, Handle, SyncDurable, SyncHandle

ONLY_ASYNC = {"pool"}  # an asyncpg pool belongs to the event loop that opened it; SyncDurable has a loop of its own
ONLY_SYNC = {"using"}  # the alias of a Django database
Shape = list[tuple[str, str, object]]


def public(cls: type) -> set[str]:
    """Methods and properties, also inherited ones; not the fields of a handle."""
    return {name for name, value in inspect.getmembers_static(cls) if not name.startswith("_") and is_call(value)}


def is_call(value: object) -> bool:
    return isinstance(value, property) or inspect.isfunction(value)


def shape(function: object, left_out: set[str]) -> Shape:
    """Names, kinds and defaults of the parameters."""
    assert callable(function)
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind.name, p.default) for p in parameters if p.name not in left_out]


def test_the_same_options() -> None:
    assert shape(SyncDurable, set()) == shape(Durable, ONLY_ASYNC)


def test_the_same_methods() -> None:
    assert public(SyncDurable) == public(Durable)
    assert public(SyncHandle) - {"machine"} == public(Handle)  # a field of a Handle


@pytest.mark.parametrize(
    ("sync", "plain", "name"),
    [(SyncDurable, Durable, name) for name in sorted(public(Durable) - {"events"})]
    + [(SyncHandle, Handle, name) for name in sorted(public(Handle) - {"id", "token"})],
)
def test_the_same_arguments(sync: type, plain: type, name: str) -> None:
    assert shape(getattr(sync, name), ONLY_SYNC) == shape(getattr(plain, name), set())
    assert getattr(sync, name).__doc__
