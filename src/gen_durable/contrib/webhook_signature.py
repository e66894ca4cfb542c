"""The signature of Standard Webhooks, and `Secret`: a key that signs, with the hosts that it signs for."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Collection
from dataclasses import InitVar, dataclass, field

from gen_durable.contrib.webhook_input import normalize_host
from gen_durable.errors import ConfigError


@dataclass(frozen=True)
class Secret:
    """A key, and the hosts whose deliveries it signs: names, addresses, or `*.example.com` for all names below one.

    A key in text is base64, with or without `whsec_` before it, as in the libraries of Standard Webhooks. Bytes are the
    key itself.
    """

    key: InitVar[str | bytes]
    hosts: Collection[str]
    _key: bytes = field(init=False, repr=False)

    def __post_init__(self, key: str | bytes) -> None:
        object.__setattr__(self, "_key", _decode_secret_key(key))
        if isinstance(self.hosts, str) or not self.hosts:
            raise ConfigError('Secret(hosts=) must list the hosts to sign for: Secret(key, hosts=["example.com"]).')
        object.__setattr__(self, "hosts", frozenset(_check_host_pattern(host) for host in self.hosts))

    def is_for_host(self, host: str) -> bool:
        """Whether deliveries to this host, as `TargetUrl.host` has it, are signed."""
        return host in self.hosts or any(f"*.{above}" in self.hosts for above in _parent_domains(host))

    def sign(self, message_id: str, timestamp: int, body: bytes) -> str:
        """The value of `webhook-signature`."""
        return sign(self._key, message_id, timestamp, body)


def sign(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: HMAC-SHA256 over id, timestamp and body, by Standard Webhooks."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _decode_secret_key(key: str | bytes) -> bytes:
    if isinstance(key, str):
        text = key.strip().removeprefix("whsec_").rstrip("=")
        try:
            key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
        except (binascii.Error, ValueError):
            raise ConfigError(
                "The key of a Secret is not base64, with or without whsec_ before it. Pass bytes for any other key."
            ) from None
    if not isinstance(key, bytes) or not key:
        raise ConfigError("The key of a Secret must be base64 text or bytes, and not empty.")
    return key


def _check_host_pattern(pattern: str) -> str:
    is_wildcard = isinstance(pattern, str) and pattern.startswith("*.")
    host = normalize_host(pattern.removeprefix("*.")) if isinstance(pattern, str) else None
    if host is None or (is_wildcard and "." not in host):
        raise ConfigError(
            f"Secret(hosts=) has {pattern!r}. Write a host without scheme, port and path, or *.example.com for the "
            "names below a domain."
        )
    return f"*.{host}" if is_wildcard else host


def _parent_domains(host: str) -> list[str]:
    labels = host.split(".")
    return [".".join(labels[i:]) for i in range(1, len(labels))]
