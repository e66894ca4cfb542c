"""From MODULE:NAME to the object that it names.

In: text typed by the operator, who may run any code here anyway. Out: the object, or an error that says which part of
the text is wrong. Nothing that comes out of a database gets here.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from gen_durable.errors import ConfigError


def load(target: str) -> object:
    """Import MODULE with the working directory on the path, and follow NAME (which may have dots) in it."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"{target!r} must be MODULE:NAME, as in shop.main:worker")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    found: object = _module(module_name)
    path = module_name
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{path} has no {part!r}{_instead(found, part)}")
        found = getattr(found, part)
        path = f"{path}.{part}"
    return found


def _module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # the module is there, and something that it imports is not
        raise ConfigError(
            f"there is no module {missing!r}: it must be importable from {Path.cwd()} (or installed)"
        ) from error


def _instead(found: object, part: str) -> str:
    import difflib

    near = difflib.get_close_matches(part, [name for name in dir(found) if not name.startswith("_")], 1)
    return f"; did you mean {near[0]!r}?" if near else ""
