"""The explorer, ready to use on a schema of its own."""

from tests.support.exploring import calls, exploring, ground, installed, sample

__all__ = ["calls", "exploring", "ground", "installed", "sample"]
