"""Read a DSN: split it into one DSN per host, and find weak TLS settings. Nothing is connected.

A DSN is as libpq knows it: `postgresql://user@one:5432,two:5432/db`, or with `host=` and `port=` in the query. The
engine writes, so of several hosts only a writable one is usable, unless the DSN says otherwise
(`target_session_attrs`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from gen_durable.errors import ConfigError

KNOWN_OPTIONS: Final = frozenset(
    {
        *("application_name", "connect_timeout", "database", "dbname", "host", "hostaddr", "krbsrvname", "options"),
        *("passfile", "password", "port", "service", "sslcert", "sslcrl", "sslkey", "sslmode", "sslnegotiation"),
        *("sslpassword", "sslrootcert", "target_session_attrs", "user"),
    }
)
VERIFY_FULL: Final = "verify-full"
TLS_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", VERIFY_FULL)
REQUIRE_TLS_VARIABLE: Final = "GEN_DURABLE_REQUIRE_TLS"
DEFAULT_ATTRS: Final = ("target_session_attrs", "read-write")


@dataclass(frozen=True, slots=True)
class Host:
    """One host: its name for messages, and a DSN with this host alone."""

    name: str
    dsn: str

    def __repr__(self) -> str:
        return f"Host({self.name})"  # a DSN holds a password


@dataclass(frozen=True, slots=True)
class DsnHosts:
    """The hosts of a DSN in its order, and the seconds each may take to connect (libpq's `connect_timeout`)."""

    hosts: tuple[Host, ...]
    timeout: float | None


def split_dsn_by_host(dsn: str) -> DsnHosts:
    """Split a DSN into one DSN per host."""
    parts = urlsplit(dsn)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    timeout = _parse_connect_timeout(options.pop("connect_timeout", ""))
    user, at, addresses = parts.netloc.rpartition("@")
    if _is_misread_because_of_password(dsn):
        return DsnHosts((Host("the host", dsn),), None)
    if addresses:
        named = [(address, parts._replace(netloc=f"{user}{at}{address}"), options) for address in addresses.split(",")]
    else:
        hosts = options.get("host", "").split(",")
        ports = options.get("port", "").split(",")
        named = [
            (f"{host}:{port}".rstrip(":"), parts, options | {k: v for k, v in (("host", host), ("port", port)) if v})
            for host, port in zip(hosts, islice(cycle(ports), len(hosts)), strict=True)
        ]
    if len(named) > 1:
        named = [(name, parts, dict([DEFAULT_ATTRS]) | options) for name, parts, options in named]
    if may_password_be_in_other_parts(dsn):
        named = [(f"host {number}", parts, options) for number, (_, parts, options) in enumerate(named, 1)]
    return DsnHosts(tuple(Host(name, _make_dsn_from_parts(parts, options)) for name, parts, options in named), timeout)


def may_password_be_in_other_parts(dsn: str) -> bool:
    """Whether a part of the DSN that looks harmless may be a piece of the password. No message may quote such a DSN.

    An unencoded & in `?password=` begins another option.
    """
    if _is_misread_because_of_password(dsn):
        return True
    options = dict(parse_qsl(urlsplit(dsn).query, keep_blank_values=True))
    return "password" in options and not options.keys() <= KNOWN_OPTIONS


def _is_misread_because_of_password(dsn: str) -> bool:
    """Whether the DSN cannot be read, or a password with unencoded characters has divided it in the wrong places.

    An unencoded /, ? or # in a password ends the part of the DSN that it stands in, so the @ after the password comes
    later; an unencoded @ ends the password. What follows is then read as host, port, database or option, and the driver
    and the server quote those.
    """
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return True
    addresses = parts.netloc.rpartition("@")[2].split(",")
    return (
        parts.netloc.count("@") > 1
        or "@" in parts.path + parts.query + parts.fragment
        or "#" in dsn
        or not all(map(_has_valid_port, addresses))
    )


def find_tls_weakness(dsn: str, environment: Mapping[str, str]) -> str | None:
    """Why the network can read or change the traffic, or None if it is safe or does not leave this machine.

    Only `sslmode=verify-full` guarantees both the encryption and the identity of the server.
    """
    try:
        parts = urlsplit(dsn)
        # As the driver reads them: the last of several counts, and an empty one is not given.
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError:
        return None  # connecting reports an unreadable DSN
    remote = _list_remote_hosts(parts.netloc, options, environment)
    mode = options.get("sslmode") or environment.get("PGSSLMODE") or "prefer"
    if not remote or mode == VERIFY_FULL:
        return None
    server = "the server" if may_password_be_in_other_parts(dsn) else remote[0]
    shown = mode if mode in TLS_MODES else "(unknown)"
    return f"sslmode={shown} does not verify the identity of {server}. Use sslmode=verify-full."


def is_tls_required(given: str | None, environment: Mapping[str, str]) -> bool:
    """Whether TLS is required: by the option, else by the variable GEN_DURABLE_REQUIRE_TLS."""
    value = given if given is not None else environment.get(REQUIRE_TLS_VARIABLE) or None
    if value not in (None, VERIFY_FULL):
        name = "require_tls" if given is not None else REQUIRE_TLS_VARIABLE
        raise ConfigError(f"{name} must be {VERIFY_FULL!r} or left out, got {value!r}")
    return value is not None


def check_required_tls(name: str, dsn: str, environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless every host of a DSN is on this machine or is connected to with verify-full.

    A DSN that can be read in two ways is refused as well. `name` is where the DSN comes from.
    """
    if may_password_be_in_other_parts(dsn):
        raise ConfigError(
            f"require_tls: {name} is refused: its hosts are not clear. "
            "Percent-encode special characters in its password."
        )
    options = dict(parse_qsl(urlsplit(dsn).query, keep_blank_values=True))
    if "service" in options or environment.get("PGSERVICE"):
        raise ConfigError(
            f"require_tls: {name} is refused: it uses a connection service file, which is not checked. "
            "Write host and sslmode into the DSN, and unset PGSERVICE."
        )
    if (weakness := find_tls_weakness(dsn, environment)) is not None:
        raise ConfigError(f"require_tls: {name} is refused: {weakness}")


def are_all_hosts_local(dsn: str, environment: Mapping[str, str]) -> bool:
    """Whether all hosts of a DSN are Unix sockets, loopback addresses or `localhost`."""
    parts = urlsplit(dsn)
    return not _list_remote_hosts(parts.netloc, dict(parse_qsl(parts.query, keep_blank_values=True)), environment)


def _list_remote_hosts(netloc: str, options: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    hosts = _list_host_names(netloc, options.get("host") or environment.get("PGHOST", ""))
    return [host for host in hosts if not _is_local_host_name(host)]


def _has_valid_port(address: str) -> bool:
    port = address.rpartition("]")[2].partition(":")[2]
    return port == "" or port.isdecimal()


def _make_dsn_from_parts(parts: SplitResult, options: dict[str, str]) -> str:
    # `geturl` would drop the slashes in front of an empty host.
    query = f"?{urlencode(options, safe='/')}" if options else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query}"


def _parse_connect_timeout(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if seconds > 0 else None


def _list_host_names(netloc: str, default: str) -> list[str]:
    # The driver decodes names in front of the path, and no others.
    in_url = netloc.rpartition("@")[2]
    addresses = map(unquote, in_url.split(",")) if in_url else default.split(",")
    return [address if address.startswith("/") else _remove_port(address) for address in addresses if address]


def _remove_port(address: str) -> str:
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") < 2 else address


def _is_local_host_name(host: str) -> bool:
    if host.startswith("/") or host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
