"""An engine for each test, and worker processes."""

from tests.support.engine import engine, spawn

__all__ = ["engine", "spawn"]
