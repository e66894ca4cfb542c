"""A client for each test, and the store, driven by hand."""

from tests.support.engine import engine
from tests.support.store import store

__all__ = ["engine", "store"]
