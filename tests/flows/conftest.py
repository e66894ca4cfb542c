"""Programs that run beside the test, and a proxy between the engine and its database."""

from tests.support.engine import private_dsn
from tests.support.processes import open_app, proxied, spawn

__all__ = ["open_app", "private_dsn", "proxied", "spawn"]
