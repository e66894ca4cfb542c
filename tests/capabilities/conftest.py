"""An engine for each test."""

from tests.support.capabilities import engine

__all__ = ["engine"]
