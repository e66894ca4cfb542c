"""An engine for each test, under a role of its own where a test counts sessions, and worker processes."""

from tests.support.engine import engine, private, private_dsn, spawn

__all__ = ["engine", "private", "private_dsn", "spawn"]
