"""Background tasks and threads that die fail the test in which they do.

An event loop reports an exception that no code retrieves to its exception handler, which logs it; this holds for the
loops of threads too. Here each such report fails the test, unless it is marked `background_errors`. Threads that die
and exceptions in `__del__` are pytest's own warnings, which are errors in this project.
"""

from __future__ import annotations

import gc
import itertools
import logging
from collections.abc import Iterator

import pytest

FREEZE_EVERY = 20
"""After so many tests, what is alive is left out of later collections, each of which would look at all of it."""


class Reports(logging.Handler):
    """What event loops have reported."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(logging.Formatter().format(record))


def pytest_collection_finish() -> None:
    """Leave modules and tests out of the collections below, which then take a millisecond or two."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tests_run() -> Iterator[int]:
    """Numbers of the tests of this process."""
    return itertools.count(1)


@pytest.fixture(autouse=True)
def background_errors(request: pytest.FixtureRequest, tests_run: Iterator[int]) -> Iterator[list[str]]:
    """Fail a test whose background tasks die. The value is the list of reports, for tests that expect one."""
    reports = Reports()
    logger = logging.getLogger("asyncio")
    logger.addHandler(reports)
    try:
        yield reports.texts
        gc.collect()  # a task reports its exception when it is deleted, which for a cycle of references is only here
        if next(tests_run) % FREEZE_EVERY == 0:
            gc.freeze()
    finally:
        logger.removeHandler(reports)
    if request.node.get_closest_marker("background_errors") is None:
        assert not reports.texts, "a background task died:\n" + "\n".join(reports.texts)
