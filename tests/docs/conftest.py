"""Engines for the pages whose statements are tested."""

from tests.support.engine import engine, private, private_dsn

__all__ = ["engine", "private", "private_dsn"]
