"""The store, driven by hand."""

from tests.support.store import store, stores

__all__ = ["store", "stores"]
