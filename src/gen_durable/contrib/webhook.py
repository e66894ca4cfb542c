"""A machine that posts a JSON body to a URL until the receiver accepts it.

It ends with a `Delivered`, or fails with the last reason. Requests are signed by the Standard Webhooks specification
(webhook-id, webhook-timestamp, webhook-signature); receivers find verifiers in most languages. Secrets belong to the
machine object: a row names its secret and never holds it.

Needs the extra: `pip install 'gen-durable[webhook]'`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from gen_durable.backoff import backoff
from gen_durable.context import Context
from gen_durable.durations import Duration
from gen_durable.errors import ConfigError, InputError
from gen_durable.machines import Machine, step
from gen_durable.outcomes import Done, Fail, Outcome, Retry, describe_error
from gen_durable.validation import check_delay

if TYPE_CHECKING:
    import ssl

    import httpx

MAX_WAIT: Final = timedelta(days=1)
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True)
class Delivery:
    """A body and its URL. Both are stored in the row: put no credentials into `headers` or the URL.

    `secret` names one of the secrets of the `Webhook`; without it the request is not signed.
    """

    url: str
    body: Any
    headers: dict[str, str] = field(default_factory=dict[str, str])
    secret: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError("The url of a Delivery must begin with https:// (or http://) and a host.")
        for name, value in self.headers.items():
            if not _HEADER.fullmatch(name) or not value.isascii() or not value.isprintable():
                raise InputError(f"The header {name!r} of a Delivery is not a valid HTTP header.")

    @property
    def host(self) -> str:
        """The host, for messages: the path or the query may hold a secret."""
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True)
class Delivered:
    """The receiver has accepted the body: its HTTP status, and the number of attempts."""

    status: int
    attempts: int


class Undelivered(Exception):
    """One attempt failed. If `final`, no other is made; `retry_after` is what the receiver asks for."""

    def __init__(self, reason: str, *, final: bool = False, retry_after: timedelta | None = None) -> None:
        super().__init__(reason)
        self.final = final
        self.retry_after = retry_after


class Webhook(Machine, name="gen_durable.webhook"):
    """Posts deliveries: `app.insert(Webhook.send, Delivery(url, body))`, as a child, or in `Done(spawn=[...])`.

    A 2xx is success and 410 (Gone) fails at once; everything else is retried up to `max_attempts`, after a back-off
    from `base` to `cap` or the time in Retry-After. Redirects are not followed. `secrets` are texts or bytes by name; a
    text that begins with `whsec_` is base64 after that. The idempotency key is made of `sender` and the instance's id,
    so it is the same at each attempt.
    """

    def __init__(
        self,
        secrets: Mapping[str, str | bytes] | None = None,
        *,
        max_attempts: int = 10,
        timeout: Duration = 10,
        base: Duration = 5,
        cap: Duration = 3600,
        sender: str = "gen_durable",
        client: httpx.AsyncClient | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ConfigError(f"max_attempts= of Webhook must be 1 or more, got {max_attempts}.")
        self._secrets = {name: _decode_secret(name, secret) for name, secret in (secrets or {}).items()}
        self._max_attempts = max_attempts
        self._timeout = check_delay(timeout, "Webhook(timeout=)", ConfigError)
        self._base = base
        self._cap = cap
        self._sender = sender
        self._client = client
        self._tls: ssl.SSLContext | None = None

    @step
    async def send(self, delivery: Delivery, ctx: Context) -> Outcome[Delivered]:
        """Make one attempt."""
        body = msgspec.json.encode(delivery.body)
        headers = self._make_headers(delivery, body, f"{self._sender}-{ctx.id}", int(time.time()))
        status, retry_after = await self._post(delivery, body, headers)
        if 200 <= status < 300:
            return Done(Delivered(status, ctx.attempt + 1))
        raise Undelivered(f"HTTP {status}", final=status == 410, retry_after=_parse_retry_after(retry_after))

    async def on_error(self, state: Delivery, ctx: Context, error: Exception) -> Outcome[Delivered]:
        """Retry after a back-off, or fail with the reason."""
        reason = str(error) if isinstance(error, Undelivered) else describe_error(error)
        if isinstance(error, Undelivered) and error.final:
            return Fail(f"webhook to {state.host}: {reason}")
        if ctx.step_errors + 1 >= self._max_attempts:
            return Fail(f"webhook to {state.host}: gave up after {ctx.step_errors + 1} attempts: {reason}")
        after = backoff(ctx.step_errors, base=self._base, cap=self._cap)
        if isinstance(error, Undelivered) and error.retry_after is not None:
            after = max(after, min(error.retry_after, MAX_WAIT))
        return Retry(state, delay=after)

    def _make_headers(self, delivery: Delivery, body: bytes, key: str, now: int) -> dict[str, str]:
        fixed = {
            "content-type": "application/json",
            "idempotency-key": key,
            "webhook-id": key,
            "webhook-timestamp": str(now),
        }
        if delivery.secret is not None:
            secret = self._secrets.get(delivery.secret)
            if secret is None:  # retried: another worker, or the next release, may have it
                raise Undelivered(f"this worker has no secret {delivery.secret!r}; pass it to Webhook(secrets=)")
            fixed["webhook-signature"] = sign(secret, key, now, body)
        return {name: value for name, value in delivery.headers.items() if name.lower() not in fixed} | fixed

    async def _post(self, delivery: Delivery, body: bytes, headers: dict[str, str]) -> tuple[int, str | None]:
        """The status and the Retry-After header. The response body is not read."""
        import httpx

        try:
            async with (
                asyncio.timeout(self._timeout),
                self._open_client() as client,
                client.stream("POST", delivery.url, content=body, headers=headers, follow_redirects=False) as response,
            ):
                return response.status_code, response.headers.get("retry-after")
        except httpx.InvalidURL as error:
            raise Undelivered("the URL is not valid", final=True) from error
        except (httpx.TransportError, TimeoutError) as error:
            raise Undelivered(f"no answer ({type(error).__name__})") from error

    def _open_client(self) -> AbstractAsyncContextManager[httpx.AsyncClient]:
        """The caller's client, which stays open, or one for this request only."""
        import httpx

        if self._client is not None:
            return nullcontext(self._client)
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return httpx.AsyncClient(verify=self._tls, timeout=self._timeout)


def sign(secret: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: HMAC-SHA256 over id, timestamp and body, by Standard Webhooks."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode()


def _decode_secret(name: str, secret: str | bytes) -> bytes:
    if isinstance(secret, str) and secret.startswith("whsec_"):
        try:
            found = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            raise ConfigError(f"The secret {name!r} begins with whsec_, but the rest of it is not base64.") from None
    else:
        found = secret.encode() if isinstance(secret, str) else secret
    if not found:
        raise ConfigError(f"The secret {name!r} is empty.")
    return found


def _parse_retry_after(retry_after: str | None) -> timedelta | None:
    """Read Retry-After: seconds, or a date."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return timedelta(seconds=min(int(retry_after[:12]), MAX_WAIT.total_seconds()))
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max((date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime.now(UTC), timedelta(0))
