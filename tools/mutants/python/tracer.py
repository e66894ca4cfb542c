"""A pytest plugin that records which lines of the package each test executes, in its own process.

A line is known by its function and its text, so that the record stays right when lines move. One JSON file per process
goes into the folder that MUTANTS_TRACE names.
"""

from __future__ import annotations

import json
import linecache
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

PACKAGE = str(Path(__file__).parents[3] / "src" / "gen_durable") + os.sep

_seen: set[tuple[CodeType, int]] = set()
_inside: dict[CodeType, bool] = {}
_record: dict[str, dict[str, Any]] = {}


def _enter(frame: FrameType, _event: str, _value: object) -> Any:
    code = frame.f_code
    inside = _inside.get(code)
    if inside is None:
        inside = _inside[code] = code.co_filename.startswith(PACKAGE)
    if not inside:
        return None
    _seen.add((code, frame.f_lineno))
    return _line


def _line(frame: FrameType, event: str, _value: object) -> Any:
    if event == "line":
        _seen.add((frame.f_code, frame.f_lineno))
    return _line


def key_of(function: str, text: str) -> str:
    """A line by its function and its text. Comprehensions and lambdas belong to the function around them."""
    return f"{re.sub(r'[.]?<[^>]*>', '', function)}|{text.strip()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Trace one test, with its fixtures."""
    global _seen  # noqa: PLW0603 - the trace function must find it fast
    _seen = set()
    began = time.monotonic()
    threading.settrace(_enter)
    sys.settrace(_enter)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(None)
        entry = _record.setdefault(item.nodeid.partition("[")[0], {"seconds": 0.0, "lines": {}})
        entry["seconds"] += time.monotonic() - began
        for code, line in list(_seen):
            file = code.co_filename[len(PACKAGE) :]
            text = linecache.getline(code.co_filename, line)
            entry["lines"].setdefault(file, set()).add(key_of(code.co_qualname, text))


def pytest_sessionfinish() -> None:
    folder = os.environ.get("MUTANTS_TRACE")
    if folder is not None and _record:
        for entry in _record.values():
            entry["lines"] = {file: sorted(keys) for file, keys in entry["lines"].items()}
        (Path(folder) / f"{os.getpid()}.json").write_text(json.dumps(_record), "utf-8")
