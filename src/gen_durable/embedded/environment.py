"""The environment of the programs that this package starts: an allow-list.

The process that starts the server may have secrets in its environment. Every superuser of the server could read them
with `copy ... from program 'env'`, and the account that runs Postgres in `/proc`.
"""

from __future__ import annotations

import os

# The binaries of the wheel run with an empty environment if the dynamic linker finds the system's libz;
# LD_LIBRARY_PATH tells it where else. The others are for programs that the server starts (archive_command).
_POSTGRES = frozenset({"HOME", "LD_LIBRARY_PATH", "PATH", "TMPDIR"})
_SUPERVISOR = _POSTGRES | {"LANG", "PYTHONHOME", "TZ"}  # an interpreter that needs PYTHONHOME does not start without


def make_supervisor_environment() -> dict[str, str]:
    """The variables of this process that the supervisor gets."""
    return {name: value for name, value in os.environ.items() if name in _SUPERVISOR or name.startswith("LC_")}


def make_postgres_environment() -> dict[str, str]:
    """The variables of this process that Postgres gets. None of them configures it."""
    return {name: value for name, value in os.environ.items() if name in _POSTGRES} | {"LC_ALL": "C"}
