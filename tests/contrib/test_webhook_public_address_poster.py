"""Which addresses are public, and that the connection goes to an address that was checked."""

from __future__ import annotations

import asyncio
import ssl
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpcore
import pytest
from tests.support.webhooks import Names, Receiver, make_certificate, names, receiver

from gen_durable.contrib import webhook_public_address_poster
from gen_durable.contrib.webhook_input import Delivery, check_and_parse_delivery
from gen_durable.contrib.webhook_public_address_poster import (
    AddressCheckingBackend,
    AddressRefused,
    is_public_address,
    post_to_checked_address,
)

__all__ = ["names"]


@pytest.mark.parametrize(
    "text",
    [
        *["127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1"],
        *["169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.192", "192.0.0.9", "168.63.129.16"],
        *["192.0.2.1", "198.51.100.1", "203.0.113.1", "198.18.0.1", "192.88.99.1"],
        *["224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"],
        *["::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1"],
        *["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::8.8.8.8", "::ffff:0:8.8.8.8"],
        *["64:ff9b::127.0.0.1", "64:ff9b::a00:1", "64:ff9b::169.254.169.254", "64:ff9b:1::808:808"],
        *["2002:7f00:1::", "2002:808:808::1", "2001::1", "2001:0:808:808::1", "2001:db8::1", "2001:20::1"],
        *["3fff::1", "5f00::1", "100::1", "4000::1"],
        *["2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:10.0.0.1"],
    ],
)
def test_addresses_that_are_not_public(text: str) -> None:
    assert not is_public_address(ip_address(text))


@pytest.mark.parametrize(
    "text",
    ["8.8.8.8", "172.32.0.1", "100.128.0.1", "223.255.255.255", "2606:4700::1111", "2a00::1", "64:ff9b::808:808"],
)
def test_addresses_that_are_public(text: str) -> None:
    assert is_public_address(ip_address(text))


async def send(url: str, *, allow_private_networks: bool = False, tls: ssl.SSLContext | None = None) -> int:
    target = check_and_parse_delivery(Delivery(url, 1))
    async with asyncio.timeout(10):
        status, _ = await post_to_checked_address(
            target,
            b"1",
            {},
            tls=tls or ssl.create_default_context(),
            connect_timeout=2,
            allow_private_networks=allow_private_networks,
        )
    return status


@pytest.mark.parametrize(
    "host",
    [
        *["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0", "localhost", "[::1]"],
        *["[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "inside.test", "mapped.test"],
    ],
)
async def test_no_spelling_of_loopback_is_connected_to(host: str, names: Names) -> None:
    names.set("inside.test", ["127.0.0.1"])
    names.set("mapped.test", ["::ffff:127.0.0.1"])
    async with receiver("200") as there:
        with pytest.raises(AddressRefused):
            await send(f"http://{host}:{there.port}/")
        assert there.connections == 0


def treat_as_public(monkeypatch: pytest.MonkeyPatch, *public: str) -> None:
    """Tests send nothing to public addresses: some of loopback stand for them."""
    monkeypatch.setattr(webhook_public_address_poster, "is_public_address", lambda address: str(address) in public)


@pytest.mark.parametrize("addresses", [["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"]])
async def test_a_name_with_one_private_address_is_refused(
    addresses: list[str], names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    treat_as_public(monkeypatch, "127.0.0.1")
    names.set("mixed.test", addresses)
    async with receiver("200") as there:
        with pytest.raises(AddressRefused):
            await send(f"http://mixed.test:{there.port}/")
        assert there.connections == 0


async def test_a_name_is_resolved_once(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: a second lookup would lead to the private address."""
    treat_as_public(monkeypatch, "127.0.0.1")
    async with receiver("200") as public:
        names.set("rebind.test", ["127.0.0.1"], ["127.0.0.2"])
        assert await send(f"http://rebind.test:{public.port}/") == 200
        assert names.lookups == ["rebind.test"]
        assert public.requests[0][0]["host"] == f"rebind.test:{public.port}"
        with pytest.raises(AddressRefused):
            await send(f"http://rebind.test:{public.port}/")


async def test_a_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    treat_as_public(monkeypatch, "127.0.0.1")
    async with receiver("200", address="127.0.0.2") as private:
        async with receiver(f"307\nlocation: {private.url}") as public:
            assert await send(public.url) == 307
        assert private.connections == 0


async def test_the_next_address_is_tried(names: Names) -> None:
    """Only to connect: a request that was sent is not sent again."""
    async with receiver("cut") as there:
        names.set("several.test", ["127.0.0.3", "::1", "127.0.0.1", "127.0.0.4"])
        with pytest.raises(httpcore.RemoteProtocolError):
            await send(f"http://several.test:{there.port}/", allow_private_networks=True)
        assert there.connections == 1
        names.set("none.test", ["127.0.0.3", "127.0.0.4"])
        with pytest.raises(httpcore.ConnectError):
            await send(f"http://none.test:{there.port}/", allow_private_networks=True)


class Swallowing(httpcore.AsyncNetworkBackend):
    """A network in which each address swallows packets; it keeps which were tried, and for how long."""

    def __init__(self) -> None:
        self.tried: list[tuple[str, float | None]] = []

    async def connect_tcp(self, host: str, port: int, timeout: float | None = None, *more: Any) -> Any:
        self.tried.append((host, timeout))
        raise httpcore.ConnectTimeout


@pytest.mark.parametrize(
    ("addresses", "tried"),
    [
        (["127.0.0.1"], [("127.0.0.1", 10)]),
        (["::1", "::2", "::3", "::4", "::5"], [("::1", 2), ("::2", 2), ("::3", 2), ("::4", 2)]),
        (["::1", "::2", "127.0.0.1"], [("::1", 2.5), ("127.0.0.1", 2.5), ("::2", 2.5)]),
    ],
)
async def test_an_address_that_swallows_packets_leaves_time_for_the_next(
    addresses: list[str], tried: list[tuple[str, float]], names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host of both families is reached although the worker's own network has only one."""
    below = Swallowing()
    monkeypatch.setattr(httpcore, "AnyIOBackend", lambda: below)
    names.set("several.test", addresses)
    with pytest.raises(httpcore.ConnectTimeout):
        await AddressCheckingBackend(allow_private_networks=True).connect_tcp("several.test", 443, timeout=10)
    assert below.tried == tried


async def test_the_certificate_is_that_of_the_name(names: Names, tmp_path: Path) -> None:
    """The connection goes to a number, and TLS verifies the name."""
    names.set("shop.test", ["127.0.0.1"])
    names.set("other.test", ["127.0.0.1"])
    certificate = make_certificate("shop.test", tmp_path)
    trusted = ssl.create_default_context(cafile=certificate.path)
    async with receiver("200", tls=certificate.tls) as there:
        options: dict[str, Any] = {"allow_private_networks": True, "tls": trusted}
        assert await send(f"https://shop.test:{there.port}/", **options) == 200
        for host in ("other.test", "127.0.0.1"):
            with pytest.raises(httpcore.ConnectError, match="certificate verify failed"):
                await send(f"https://{host}:{there.port}/", **options)
        assert len(there.requests) == 1


async def test_one_framing_leaves(names: Names) -> None:
    """Host and Content-Length are the HTTP client's own, once each."""

    def count(there: Receiver, name: str) -> int:
        return sum(line.lower().startswith(f"{name}:") for line in there.heads[0])

    names.set("shop.test", ["127.0.0.1"])
    async with receiver("200") as there:
        assert await send(f"http://shop.test:{there.port}/a?b", allow_private_networks=True) == 200
        assert there.heads[0][0] == "POST /a?b HTTP/1.1"
        assert (count(there, "host"), count(there, "content-length"), count(there, "transfer-encoding")) == (1, 1, 0)
