"""An engine for each test, as the tests of the worker have it."""

from tests.worker.conftest import engine

__all__ = ["engine"]
