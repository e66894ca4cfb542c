"""Secrets: their keys, their hosts, and signatures as the package of Standard Webhooks makes them."""

from __future__ import annotations

import base64
import secrets
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from gen_durable.contrib.webhook import Secret, sign
from gen_durable.errors import ConfigError

KEY = base64.b64encode(bytes(range(24))).decode()


def test_the_example_of_the_specification() -> None:
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    made = sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(min_size=1, max_size=80), st.text(), st.sampled_from(["whsec_", ""]), st.booleans())
def test_keys_are_those_of_the_standard_package(key: bytes, body: str, prefix: str, is_padded: bool) -> None:
    """Text with and without whsec_, with and without padding, and bytes: the same key, the same signature."""
    encoded = base64.b64encode(key).decode()
    text = prefix + (encoded if is_padded else encoded.rstrip("="))
    if not body.isascii():
        body = body.encode("utf-8", "replace").decode()
    for given_key in (text, key):
        theirs = standardwebhooks.Webhook(given_key).sign("msg_1", datetime.fromtimestamp(1614265330, UTC), body)
        assert Secret(given_key, hosts=["a.test"]).sign("msg_1", 1614265330, body.encode()) == theirs


@pytest.mark.parametrize("key", ["", "whsec_", b"", "whsec_%%%", "canary-secret", "abcde", "a b", None, 7])
def test_keys_that_are_none_are_refused(key: Any) -> None:
    with pytest.raises(ConfigError, match="The key of a Secret"):
        Secret(key, hosts=["a.test"])


@pytest.mark.parametrize(
    ("hosts", "covered", "not_covered"),
    [
        (["example.com"], ["example.com"], ["www.example.com", "example.com.evil.test", "evil-example.com", "com"]),
        (["Example.COM."], ["example.com"], ["example.org"]),
        (["*.example.com"], ["a.example.com", "a.b.example.com"], ["example.com", "aexample.com", "example.com.test"]),
        (["10.0.0.1", "::1"], ["10.0.0.1", "::1"], ["10.0.0.2", "::2"]),
        (["0:0:0:0:0:0:0:1"], ["::1"], ["::2"]),
    ],
)
def test_hosts(hosts: list[str], covered: list[str], not_covered: list[str]) -> None:
    secret = Secret(KEY, hosts=hosts)
    assert [host for host in covered + not_covered if secret.is_for_host(host)] == covered


@pytest.mark.parametrize(
    "hosts",
    [
        *[[], "example.com", ["*"], ["*.com"], ["*."], ["https://example.com"], ["example.com:443"], ["a/b"]],
        *[[""], ["a.*.com"], ["**.example.com"], ["*example.com"], [7], ["bücher.test"]],
    ],
)
def test_hosts_that_cannot_be_meant_are_refused(hosts: Any) -> None:
    """Above all none, and all."""
    with pytest.raises(ConfigError, match=r"Secret\(hosts=\)"):
        Secret(KEY, hosts=hosts)


def test_the_key_is_not_shown() -> None:
    key = secrets.token_bytes(24)
    assert repr(Secret(key, hosts=["a.test"])) == "Secret(hosts=frozenset({'a.test'}))"
