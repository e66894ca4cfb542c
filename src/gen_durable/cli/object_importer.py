"""Import the object that MODULE:NAME names, as an operator types it on the command line.

Nothing that comes out of a database reaches this module: importing runs code.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from gen_durable.errors import ConfigError


def import_object(target: str) -> object:
    """Import MODULE with the working directory on the path, and follow NAME (which may have dots) in it."""
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"{target!r} is not of the form MODULE:NAME. Write for example shop.main:worker.")
    _add_working_directory_to_path()
    found: object = _import_module(module_name)
    path = module_name
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{path} has no {part!r}.{_suggest_name(found, part)}")
        found = getattr(found, part)
        path = f"{path}.{part}"
    return found


def _add_working_directory_to_path() -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _import_module(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # the module exists, and something that it imports does not
        raise ConfigError(
            f"There is no module {missing!r}. It must be installed, or importable from {Path.cwd()}."
        ) from error


def _suggest_name(found: object, part: str) -> str:
    import difflib

    near = difflib.get_close_matches(part, [name for name in dir(found) if not name.startswith("_")], 1)
    return f" Did you mean {near[0]!r}?" if near else ""
