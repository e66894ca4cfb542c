"""Posts one request over a connection whose address has been checked.

A name is resolved once. All its addresses are checked, and the connection goes to one of them by its number, so a name
that resolves differently a moment later (DNS rebinding) gains nothing. TLS still verifies the name. Redirects are not
followed, and the response body is not read.

Needs the extra `webhook`; `webhook.py` imports this module when it sends.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import httpcore

from gen_durable.contrib.webhook_input import TargetUrl

if TYPE_CHECKING:
    import ssl

Address: TypeAlias = IPv4Address | IPv6Address
MAX_ADDRESSES: Final = 4

# `is_global` of the standard library changes with its version, and has multicast: these are listed in any case.
_REFUSED_IPV4: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT, and metadata of some clouds
        "127.0.0.0/8",
        "168.63.129.16/32",  # the platform's own services in Azure
        "169.254.0.0/16",  # link-local, and metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_UNICAST_IPV6: Final = ip_network("2000::/3")  # everything else is local, mapped, multicast or reserved
_REFUSED_IPV6: Final = tuple(
    ip_network(text)
    for text in (
        "2001::/23",  # Teredo and other protocols
        "2001:db8::/32",
        "2002::/16",  # 6to4, with an IPv4 address inside
        "3fff::/20",
    )
)
_NAT64: Final = ip_network("64:ff9b::/96")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


class AddressRefused(Exception):
    """The host has an address that is not public."""


def is_public_address(address: Address) -> bool:
    """Whether an address is one of the public internet: not private, local, multicast, reserved, or a tunnel's."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _REFUSED_IPV4)
    if address in _NAT64:  # networks without IPv4 reach all of it by these: the embedded address decides
        return is_public_address(IPv4Address(int(address) & 0xFFFFFFFF))
    if address not in _UNICAST_IPV6 or (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return False
    return not any(address in network for network in _REFUSED_IPV6)


async def post_to_checked_address(
    target: TargetUrl,
    body: bytes,
    headers: Mapping[str, str],
    *,
    tls: ssl.SSLContext,
    connect_timeout: float,
    allow_private_networks: bool,
) -> tuple[int, str | None]:
    """Post a body and return the status and the Retry-After header. Raises AddressRefused, and errors of httpcore."""
    sent = [("Host", target.authority), *headers.items()]
    url = httpcore.URL(
        scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
    )
    async with (
        httpcore.AsyncConnectionPool(
            ssl_context=tls,
            network_backend=AddressCheckingBackend(allow_private_networks=allow_private_networks),
        ) as pool,
        pool.stream(
            b"POST",
            url,
            headers=[(name.encode(), value.encode()) for name, value in sent],
            content=body,
            extensions={"timeout": {"connect": connect_timeout}},
        ) as response,
    ):
        return response.status, _find_header(response.headers, b"retry-after")


class AddressCheckingBackend(httpcore.AsyncNetworkBackend):
    """Connects to the addresses of a host after it has checked all of them."""

    def __init__(self, *, allow_private_networks: bool) -> None:
        self._allow_private_networks = allow_private_networks
        # For pyright this class may be a stub, since httpcore works without anyio. httpx brings anyio.
        self._network = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await _resolve_addresses(host, port)
        if not self._allow_private_networks and not all(is_public_address(address) for address in addresses):
            raise AddressRefused
        tried = _interleave_ip_families(addresses)[:MAX_ADDRESSES]
        # Of several addresses one may swallow packets: leave time for the next one, and for the request.
        share = timeout if timeout is None or len(tried) == 1 else timeout / (len(tried) + 1)
        for address in tried[:-1]:
            try:
                return await self._network.connect_tcp(str(address), port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(str(tried[-1]), port, share, local_address, socket_options)


async def _resolve_addresses(host: str, port: int) -> list[Address]:
    """All addresses of a host, in the order of preference. Raises OSError if it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(info[4][0]) for info in found))


def _interleave_ip_families(addresses: list[Address]) -> list[Address]:
    """IPv4 and IPv6 in turn, beginning with the preferred one."""
    first = [address for address in addresses if address.version == addresses[0].version]
    second = [address for address in addresses if address.version != addresses[0].version]
    return [address for pair in zip_longest(first, second) for address in pair if address is not None]


def _find_header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> str | None:
    return next((value.decode("latin-1") for name, value in headers if name.lower() == wanted), None)
