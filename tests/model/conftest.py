"""The store, driven by hand, as in tests/store."""

from __future__ import annotations

from tests.store.conftest import store

__all__ = ["store"]
