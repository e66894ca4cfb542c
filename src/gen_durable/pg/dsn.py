"""A DSN of several hosts, taken apart.

In: a DSN as libpq knows it: `postgresql://user@one:5432,two:5432/db`, or with `host=` and `port=` behind the question
mark. Out: a DSN for each host, in that order. The engine writes, so of several hosts only one that can be written to is
of use, unless the DSN says otherwise (`target_session_attrs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

DEFAULT_ATTRS: Final = ("target_session_attrs", "read-write")


@dataclass(frozen=True, slots=True)
class Host:
    """One host: its name for messages, and the DSN that leads to it alone."""

    name: str
    dsn: str

    def __repr__(self) -> str:
        return f"Host({self.name})"  # a DSN holds a password


@dataclass(frozen=True, slots=True)
class Hosts:
    """What a DSN names, and how long each host may take to answer (libpq's `connect_timeout`)."""

    each: tuple[Host, ...]
    timeout: float | None


def hosts_of(dsn: str) -> Hosts:
    """The hosts of a DSN."""
    parts = urlsplit(dsn)
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    timeout = _seconds(said.pop("connect_timeout", ""))
    user, at, places = parts.netloc.rpartition("@")
    if "@" in parts.path + parts.fragment or not all(_is_place(place) for place in places.split(",")):
        # A password that is not percent-encoded: what looks like a host may be a piece of it. The driver refuses it.
        return Hosts((Host("the host", dsn),), None)
    if places:
        named = [(place, parts._replace(netloc=f"{user}{at}{place}"), said) for place in places.split(",")]
    else:
        hosts = said.get("host", "").split(",")
        ports = said.get("port", "").split(",")
        named = [
            (f"{host}:{port}".rstrip(":"), parts, said | {k: v for k, v in (("host", host), ("port", port)) if v})
            for host, port in zip(hosts, islice(cycle(ports), len(hosts)), strict=True)
        ]
    if len(named) > 1:
        named = [(name, place, dict([DEFAULT_ATTRS]) | query) for name, place, query in named]
    return Hosts(tuple(Host(name, _joined(place, query)) for name, place, query in named), timeout)


def _is_place(place: str) -> bool:
    port = place.rpartition("]")[2].partition(":")[2]
    return port == "" or port.isdecimal()


def _joined(parts: SplitResult, query: dict[str, str]) -> str:
    # By hand: `geturl` leaves out the slashes of an empty host.
    asked = f"?{urlencode(query, safe='/')}" if query else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{asked}"


def _seconds(said: str) -> float | None:
    try:
        seconds = float(said)
    except ValueError:
        return None
    return seconds if seconds > 0 else None
