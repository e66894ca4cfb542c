"""An engine for each conformance test, and a worker process that can be killed."""

from tests.support.spec import doomed, engine

__all__ = ["doomed", "engine"]
