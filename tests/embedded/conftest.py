"""Directories with an embedded server."""

from tests.support.embedded import (
    _wheel,
    bare,
    build,
    data_directory,
    group_of_root,
    nobody,
    nobodys_python,
    open_air,
    prepared,
)

__all__ = [
    "_wheel",
    "bare",
    "build",
    "data_directory",
    "group_of_root",
    "nobody",
    "nobodys_python",
    "open_air",
    "prepared",
]
