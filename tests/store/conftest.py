"""The store, driven by hand."""

from tests.support.store import store

__all__ = ["store"]
