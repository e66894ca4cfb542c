"""The error tree: what the docstring draws is what the classes are."""

from __future__ import annotations

import inspect

from gen_durable import errors
from gen_durable.errors import Duplicate, GenDurableError


def drawn() -> dict[str, str | None]:
    """Each error in the drawing, with the one above it."""
    above: list[tuple[int, str]] = []
    found: dict[str, str | None] = {}
    for line in (errors.__doc__ or "").splitlines():
        branch = line.replace("│", " ").replace("├──", "   ").replace("└──", "   ")
        words = branch.split()
        drawn_as_branch = branch != line or words == ["GenDurableError"]
        if not drawn_as_branch or not words:
            continue
        depth = len(branch) - len(branch.lstrip())
        above = [(d, name) for d, name in above if d < depth]
        found[words[0]] = above[-1][1] if above else None
        above.append((depth, words[0]))
    return found


def test_the_drawing_is_the_tree() -> None:
    """No error is missing in the docstring, none is drawn that is not there, and each hangs where it is drawn."""
    real = {
        name: None if cls is GenDurableError else cls.__bases__[0].__name__
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, GenDurableError)
    }
    assert drawn() == real


def test_every_error_says_what_it_is() -> None:
    """Each has a docstring of its own."""
    for name, cls in inspect.getmembers(errors, inspect.isclass):
        assert cls.__dict__.get("__doc__"), name


def test_duplicate_carries_key_and_holder() -> None:
    """Whoever catches it can go on with the instance that is there."""
    error = Duplicate("taken", key=b"order:42", existing_id=7)
    assert (str(error), error.key, error.existing_id) == ("taken", b"order:42", 7)
