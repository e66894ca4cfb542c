"""The command line in real processes, in a directory of their own."""

from tests.support.commands import command_server, run, start

__all__ = ["command_server", "run", "start"]
