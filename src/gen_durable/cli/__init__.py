"""The command line `gen-durable`. Its dependencies come with the extra `cli`; the core does not import it."""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["main"]

_DEPENDENCIES: Final = frozenset({"typer", "rich"})


def main() -> None:
    """Run the command line."""
    try:
        from gen_durable.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _DEPENDENCIES:
            raise
        print(
            "gen-durable: the command line needs the extra `cli`. Run: pip install 'gen-durable[cli]'", file=sys.stderr
        )
        sys.exit(2)
    from gen_durable.cli.console import print_unexpected_error

    try:
        app(prog_name="gen-durable")
    except Exception as error:  # of users' modules mostly: shown complete, and without decoration
        print_unexpected_error(error)
        sys.exit(1)
