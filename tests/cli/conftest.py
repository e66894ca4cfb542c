"""The command line in real processes, in a directory of their own."""

from tests.support.commands import run, start

__all__ = ["run", "start"]
