"""The command line in real processes, in a directory of their own, and an engine beside it."""

from tests.support.commands import command_server, run, start
from tests.support.engine import engine

__all__ = ["command_server", "engine", "run", "start"]
