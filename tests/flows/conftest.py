"""Programs that run beside the test, and a proxy between the engine and its database."""

from tests.support.processes import open_app, proxied, spawn

__all__ = ["open_app", "proxied", "spawn"]
