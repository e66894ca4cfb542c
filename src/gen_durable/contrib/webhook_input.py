"""`Delivery`, the input of the webhook machine, and the checks of its URL and headers that need no network.

A URL is parsed once, into a `TargetUrl`: what is checked is what is connected to, so two parsers cannot disagree about
the host. Headers that frame the message or concern one connection belong to the HTTP client, never to a payload.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Any, Final
from urllib.parse import quote, urlsplit

from gen_durable.errors import InputError

_NETLOC: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
_HOST_NAME: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_](?:[a-z0-9_-]{0,62}))*")
_PORTS: Final = {"https": 443, "http": 80}
_TARGET_CHARACTERS: Final = "!$%&'()*+,/:;=?@[]~"
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Framing, hop-by-hop headers, and those by which a client and a server agree on a connection.
_CONNECTION_HEADERS: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_OWN_HEADERS: Final = frozenset({"content-encoding", "content-type", "idempotency-key"})


@dataclass(frozen=True, slots=True)
class TargetUrl:
    """The parts of a URL: `host` is in lower case, without brackets and without a final dot; `path` has the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The host, and the port if it is not the scheme's own: the value of the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL, written anew from the parts."""
        return f"{self.scheme}://{self.authority}{self.path}"


@dataclass(frozen=True, init=False)
class Delivery:
    """A body and its URL. Both are stored in the row: put no credentials into `headers` or the URL.

    `secret` names one of the secrets of the `Webhook`; without it the request is not signed.
    """

    url: str
    body: Any
    headers: dict[str, str] = field(default_factory=dict[str, str])
    secret: str | None = None

    # An __init__, not a __post_init__: decoding calls only the latter, and its error would postpone the row without an
    # end. What other languages have inserted is checked by the step, which fails (test_a_bad_row_fails_at_once).
    def __init__(self, url: str, body: Any, headers: dict[str, str] | None = None, secret: str | None = None) -> None:
        object.__setattr__(self, "url", url)
        object.__setattr__(self, "body", body)
        object.__setattr__(self, "headers", {} if headers is None else headers)
        object.__setattr__(self, "secret", secret)
        check_and_parse_delivery(self)


def check_and_parse_delivery(delivery: Delivery) -> TargetUrl:
    """Check URL and headers, and return the parts of the URL. Raises InputError, which quotes no value."""
    if not isinstance(delivery.url, str):
        raise InputError(f"The url of a Delivery must be a str, got {type(delivery.url).__name__}.")
    if not isinstance(delivery.headers, dict):
        raise InputError(f"The headers of a Delivery must be a dict, got {type(delivery.headers).__name__}.")
    for name, value in delivery.headers.items():
        _check_header(name, value)
    return _parse_url(delivery.url)


def normalize_host(host: str) -> str | None:
    """A host name or address as `TargetUrl.host` has it. Returns None if it is neither."""
    if ":" in host:
        try:
            return IPv6Address(host).compressed
        except ValueError:
            return None
    name = host.lower().removesuffix(".")
    return name if _HOST_NAME.fullmatch(name) else None


def _parse_url(url: str) -> TargetUrl:
    if " " in url or "\\" in url or not url.isprintable():
        raise InputError(
            "The url of a Delivery has a space, a backslash or a control character. Percent-encode it, as in %20."
        )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise InputError("The url of a Delivery cannot be parsed. Write it as https://host/path.") from None
    if parts.scheme not in _PORTS or not parts.netloc:
        raise InputError("The url of a Delivery must begin with https:// (or http://) and a host.")
    if "@" in parts.netloc:
        raise InputError("The url of a Delivery has a user name or a password. Leave it out: the URL is stored.")
    if "#" in url:
        raise InputError("The url of a Delivery has a fragment (#...), which is never sent. Leave it out.")
    if not parts.netloc.isascii():
        raise InputError("The host of a Delivery is not ASCII. Write it in its xn-- form.")
    found = _NETLOC.fullmatch(parts.netloc)
    host = None if found is None else normalize_host(found[1] or found[2])
    if found is None or host is None:
        raise InputError("The url of a Delivery has no valid host. Write it as https://host/path.")
    port = int(found[3]) if found[3] else _PORTS[parts.scheme]
    if not 1 <= port <= 65535:
        raise InputError(f"The port {port} of a Delivery does not exist. Leave it out for the usual one.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return TargetUrl(parts.scheme, host, port, quote(path, safe=_TARGET_CHARACTERS))


def _check_header(name: str, value: str) -> None:
    # The name is shown only if it is harmless: this text is stored, and a name may hold anything.
    if not isinstance(name, str) or not _HEADER.fullmatch(name):
        raise InputError("The name of a header of a Delivery has characters that HTTP does not allow.")
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise InputError(
            f"The header {name!r} of a Delivery must be a str of printable ASCII, without line breaks or tabs."
        )
    known = name.lower().replace("_", "-")  # many servers read `_` as `-`
    if known in _CONNECTION_HEADERS or known.startswith("proxy-"):
        raise InputError(f"The header {name!r} of a Delivery belongs to the HTTP connection. Leave it out.")
    if known in _OWN_HEADERS or known.startswith("webhook-"):
        raise InputError(f"The header {name!r} of a Delivery is set by Webhook itself. Leave it out.")
