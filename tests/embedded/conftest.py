"""Directories with an embedded server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
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


@pytest.fixture(autouse=True)
def _files_for_their_owner() -> Iterator[None]:
    """Files that a group may write to are refused, and some users create such files by default."""
    before = os.umask(0o022)
    yield
    os.umask(before)
