"""The command line, `gen-durable`. The core needs nothing of it: what it is built with comes with the extra `cli`."""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["main"]

_NEEDED: Final = frozenset({"typer", "rich"})


def main() -> None:
    """Run the command that the arguments name."""
    try:
        from gen_durable.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        print("gen-durable: the command line needs more packages: pip install 'gen-durable[cli]'", file=sys.stderr)
        sys.exit(2)
    app(prog_name="gen-durable")
