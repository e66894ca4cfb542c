"""The checks of URLs and headers that need neither network nor configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gen_durable.contrib.webhook_input import Delivery, TargetUrl, check_and_parse_delivery
from gen_durable.errors import InputError


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/", "must begin with https://"),
        ("file:///etc/passwd", "must begin with https://"),
        ("http://", "must begin with https://"),
        ("host/path", "must begin with https://"),
        ("//host/path", "must begin with https://"),
        ("", "must begin with https://"),
        ("https://user@host/", "user name"),
        ("https://user:word@host/", "user name"),
        ("https://good.test@evil.test/", "user name"),
        ("https://@host/", "user name"),
        ("https://good.test\\@evil.test/", "backslash"),
        ("https://host/#part", "fragment"),
        ("https://host/#", "fragment"),
        ("https://host/a b", "space"),
        (" https://host/", "space"),
        ("https://ho\nst/", "control character"),
        ("https://host/\r\nX: 1", "control character"),
        ("https://host/\t", "control character"),
        ("https://host/\x00", "control character"),
        ("https://host/\x7f", "control character"),
        ("https://host/\u2028", "control character"),
        ("https://bücher.test/", "xn-- form"),
        ("https://127。0。0。1/", "xn-- form"),
        ("https://host:/", "no valid host"),
        ("https://host:x/", "no valid host"),
        ("https://host:0/", "port 0"),
        ("https://host:65536/", "port 65536"),
        ("https://host:+443/", "no valid host"),
        ("https://a..b/", "no valid host"),
        ("https://-a/", "no valid host"),
        ("https://a.../", "no valid host"),
        ("https://" + "a" * 64 + ".test/", "no valid host"),
        ("https://" + "a." * 127 + "test/", "no valid host"),
        ("https://a%2eb/", "no valid host"),
        ("https://[::1/", "cannot be parsed"),
        ("https://[::1%25eth0]/", "no valid host|cannot be parsed"),
        ("https://[v1.a]/", "no valid host|cannot be parsed"),
        ("https://[1.2.3.4]/", "no valid host|cannot be parsed"),
    ],
)
def test_a_url_that_is_refused(url: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as raised:
        Delivery(url, 1)
    assert "word@" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("https://Example.COM", TargetUrl("https", "example.com", 443, "/"), "example.com"),
        ("HTTPS://example.com.:443/a?b=c", TargetUrl("https", "example.com", 443, "/a?b=c"), "example.com"),
        ("http://example.com?q", TargetUrl("http", "example.com", 80, "/?q"), "example.com"),
        (
            "https://example.com:8443/ü?ö=%20",
            TargetUrl("https", "example.com", 8443, "/%C3%BC?%C3%B6=%20"),
            "example.com:8443",
        ),
        ("https://[2001:DB8:0::1]:444/", TargetUrl("https", "2001:db8::1", 444, "/"), "[2001:db8::1]:444"),
        ("http://127.0.0.1:8000/", TargetUrl("http", "127.0.0.1", 8000, "/"), "127.0.0.1:8000"),
        ("https://a_b.example.com/", TargetUrl("https", "a_b.example.com", 443, "/"), "a_b.example.com"),
    ],
)
def test_a_url_is_parsed_once(url: str, target: TargetUrl, authority: str) -> None:
    """What is checked is what is connected to."""
    assert check_and_parse_delivery(Delivery(url, 1)) == target
    assert target.authority == authority
    assert check_and_parse_delivery(Delivery(target.url, 1)) == target


@pytest.mark.parametrize(
    "name",
    [
        *["Host", "Content-Length", "Transfer-Encoding", "Connection", "TE", "Trailer", "Upgrade", "Keep-Alive"],
        *["Proxy-Authorization", "Proxy-Connection", "proxy-anything", "Expect", "HTTP2-Settings"],
        *["tRaNsFeR-eNcOdInG", "Transfer_Encoding", "Content_Length"],
    ],
)
def test_framing_and_hop_headers_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="belongs to the HTTP connection"):
        Delivery("https://host/", 1, {name: "1"})


@pytest.mark.parametrize(
    "name",
    ["webhook-id", "Webhook-Signature", "WEBHOOK_TIMESTAMP", "Idempotency-Key", "content-type", "Content-Encoding"],
)
def test_the_headers_of_webhook_are_refused(name: str) -> None:
    """Also where nothing would overwrite them: a signature on a delivery without a secret."""
    with pytest.raises(InputError, match="is set by Webhook itself"):
        Delivery("https://host/", 1, {name: "1"})


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\r\nb", "a\x00", "ü", "Host ", " Host", "a\tb"])
def test_header_names_with_other_characters_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="characters that HTTP does not allow"):
        Delivery("https://host/", 1, {name: "1"})


@pytest.mark.parametrize("value", ["c\r\nd: e", "c\nd", "c\rd", "\x00", "\t", "\x7f", "ü", "\u2028", 7])
def test_header_values_with_other_characters_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="printable ASCII"):
        Delivery("https://host/", 1, {"a": value})


def test_wrong_types_are_refused() -> None:
    url: Any = b"https://host/"
    headers: Any = [("a", "b")]
    with pytest.raises(InputError, match="must be a str"):
        Delivery(url, 1)
    with pytest.raises(InputError, match="must be a dict"):
        Delivery("https://host/", 1, headers)


def test_a_delivery_is_a_frozen_dataclass() -> None:
    delivery = Delivery("https://host/", {"a": 1}, {"X-A": "1"}, "shop")
    assert delivery == Delivery("https://host/", {"a": 1}, headers={"X-A": "1"}, secret="shop")
    assert dataclasses.replace(delivery, secret=None).secret is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        delivery.url = "https://other/"  # type: ignore[misc]
    with pytest.raises(InputError):
        dataclasses.replace(delivery, url="ftp://host/")
