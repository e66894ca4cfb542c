"""Whether a connection is sure to lead where it should.

In: a DSN. Out: words about what is weak in it, or none. Nothing is connected.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit


def weakness(dsn: str, environment: Mapping[str, str]) -> str | None:
    """Why others may read or change what goes over the network; None: they cannot, or it does not leave this machine.

    Only `sslmode=verify-full` makes sure both of the encryption and of who is at the other end.
    """
    try:
        parts = urlsplit(dsn)
        query = parse_qs(parts.query)
    except ValueError:
        return None  # it cannot be read: connecting says so
    hosts = _hosts(parts.netloc, query.get("host", [environment.get("PGHOST", "")])[0])
    remote = [host for host in hosts if not _is_local(host)]
    mode = query.get("sslmode", [environment.get("PGSSLMODE", "prefer")])[0]
    if not remote or mode == "verify-full":
        return None
    return f"sslmode={mode} does not make sure that {remote[0]} is who it says: use sslmode=verify-full"


def _hosts(netloc: str, other: str) -> list[str]:
    named = netloc.rpartition("@")[2] or other
    return [host if host.startswith("/") else _without_port(host) for host in named.split(",") if host]


def _without_port(host: str) -> str:
    return (
        host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0] if host.count(":") < 2 else host
    )


def _is_local(host: str) -> bool:
    if host.startswith(("/", "%2F", "%2f")) or host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
