"""The program of the supervisor process, run by its path: `python __main__.py <directory> <binaries> <lock fd>`.

It lives as long as the server, so it loads only the standard library and this package: an empty module replaces
`gen_durable/__init__.py`, which would import the driver and the engine.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

if __name__ == "__main__":
    package = types.ModuleType("gen_durable")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["gen_durable"] = package

    from gen_durable.embedded.supervisor import detach_and_supervise

    detach_and_supervise(sys.argv[1], sys.argv[2], int(sys.argv[3]))
