"""A client for each test."""

from tests.support.engine import engine

__all__ = ["engine"]
