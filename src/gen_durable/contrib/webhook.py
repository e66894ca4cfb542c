"""A machine that posts a JSON body to a URL until the receiver accepts it.

It ends with a `Delivered`, or fails. Requests are signed by the Standard Webhooks specification (webhook-id,
webhook-timestamp, webhook-signature); receivers find verifiers in most languages. Secrets belong to the machine object:
a row names its secret and never holds it.

A client that may insert deliveries must not gain the worker's place in the network, nor its signature. So a secret
signs only for the hosts that it lists, addresses that are not public are refused, and a failed instance does not tell
whether its receiver was unreachable, refused or unwilling: otherwise deliveries would scan ports.

Needs the extra: `pip install 'gen-durable[webhook]'`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

import msgspec

from gen_durable.backoff import backoff
from gen_durable.context import Context
from gen_durable.contrib.webhook_input import Delivery, TargetUrl, check_and_parse_delivery
from gen_durable.contrib.webhook_signature import Secret, sign
from gen_durable.durations import Duration
from gen_durable.errors import ConfigError, InputError
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.machines import Machine, step
from gen_durable.outcomes import Done, Fail, Outcome, Retry
from gen_durable.stored_exceptions import describe_error
from gen_durable.validation import check_delay

if TYPE_CHECKING:
    import ssl

    import httpx

__all__ = ["Delivered", "Delivery", "Secret", "Undelivered", "Webhook", "sign"]

log = get_escaping_logger("gen_durable.webhook")
MAX_WAIT: Final = timedelta(days=1)
NOT_DELIVERED: Final = "not delivered; the worker's log has the reason, and Webhook(show_details=True) stores it"
_SENDER: Final = re.compile(r"[A-Za-z0-9_:/@+-]+")


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


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How one attempt ended: the receiver's status and Retry-After, or the reason why there are none."""

    reason: str
    status: int | None = None
    retry_after: str | None = None


class Webhook(Machine, name="gen_durable.webhook"):
    """Posts deliveries: `app.insert(Webhook.send, Delivery(url, body))`, as a child, or in `Done(spawn=[...])`.

    A 2xx is success and 410 (Gone) fails at once; everything else is retried up to `max_attempts`, after a back-off
    from `base` to `cap` or the time in Retry-After. Redirects are not followed. `secrets` are by name. The idempotency
    key is made of `sender` and the instance's id, so it is the same at each attempt.

    Only https to public addresses, on the `ports` (443), is allowed. `allow_private_networks` allows every address,
    http, and every port unless there are `ports`. A `client` makes its own connections, so that their addresses cannot
    be checked: it needs `allow_private_networks` as well. With `show_details` the error of an instance says why it was
    not delivered; without it only the worker's log does.
    """

    def __init__(
        self,
        secrets: Mapping[str, Secret] | None = None,
        *,
        max_attempts: int = 10,
        timeout: Duration = 10,
        base: Duration = 5,
        cap: Duration = 3600,
        sender: str = "gen_durable",
        ports: Collection[int] | None = None,
        allow_private_networks: bool = False,
        show_details: bool = False,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        if max_attempts < 1:
            raise ConfigError(f"max_attempts= of Webhook must be 1 or more, got {max_attempts}.")
        if not _SENDER.fullmatch(sender):
            raise ConfigError(f"sender= of Webhook must be letters, digits and any of _:/@+-, got {sender!r}.")
        if client is not None and not allow_private_networks:
            raise ConfigError(
                "Webhook(client=) connects by itself, so its addresses cannot be checked. Pass allow_private_networks="
                "True as well, and a client that reaches only what your users may reach."
            )
        self._secrets = _check_secrets(secrets or {})
        self._max_attempts = max_attempts
        self._timeout = check_delay(timeout, "Webhook(timeout=)", ConfigError)
        self._base = base
        self._cap = cap
        self._sender = sender
        self._ports = _resolve_allowed_ports(ports, allow_private_networks=allow_private_networks)
        self._allow_private_networks = allow_private_networks
        self._show_details = show_details
        self._client = client
        self._tls = _load_tls_context()

    @step
    async def send(self, delivery: Delivery, ctx: Context) -> Outcome[Delivered]:
        """Make one attempt."""
        target = self._check_and_parse_allowed_delivery(delivery)
        body = msgspec.json.encode(delivery.body)
        headers = self._make_signed_headers(delivery, target, body, f"{self._sender}-{ctx.id}", int(time.time()))
        answer = await self._post_and_describe_result(target, body, headers)
        if answer.status is not None and 200 <= answer.status < 300:
            return Done(Delivered(answer.status, ctx.attempt + 1))
        # Without the host, which belongs to the payload. One place raises for all reasons: also the stored traceback,
        # its lines and causes are the same for all (test_all_unreachable_targets_look_alike).
        log.info("instance %d: attempt %d failed: %s", ctx.id, ctx.attempt + 1, answer.reason)
        reason = f"webhook to {target.host}: {answer.reason}" if self._show_details else NOT_DELIVERED
        raise Undelivered(reason, final=answer.status == 410, retry_after=_parse_retry_after(answer.retry_after))

    async def on_error(self, state: Delivery, ctx: Context, error: Exception) -> Outcome[Delivered]:
        """Retry after a back-off, or fail with the reason."""
        reason = str(error) if isinstance(error, Undelivered) else describe_error(error)
        if isinstance(error, Undelivered) and error.final:
            return Fail(reason)
        if ctx.step_errors + 1 >= self._max_attempts:
            return Fail(f"gave up after {ctx.step_errors + 1} attempts: {reason}")
        after = backoff(ctx.step_errors, base=self._base, cap=self._cap)
        if isinstance(error, Undelivered) and error.retry_after is not None:
            after = max(after, min(error.retry_after, MAX_WAIT))
        return Retry(state, delay=after)

    def _check_and_parse_allowed_delivery(self, delivery: Delivery) -> TargetUrl:
        """Check what the row has, which need not come from our client, and what this worker allows."""
        try:
            target = check_and_parse_delivery(delivery)
        except InputError as error:
            raise Undelivered(str(error), final=True) from None
        # Retried, as an unknown secret is: another worker, or the next release, may allow it.
        if target.scheme != "https" and not self._allow_private_networks:
            raise Undelivered("the url must begin with https://; Webhook(allow_private_networks=True) allows http://")
        if self._ports is not None and target.port not in self._ports:
            raise Undelivered(f"the port {target.port} is not allowed; pass Webhook(ports=) to allow others than 443")
        return target

    def _make_signed_headers(
        self, delivery: Delivery, target: TargetUrl, body: bytes, key: str, now: int
    ) -> dict[str, str]:
        headers = delivery.headers | {
            "content-type": "application/json",
            "idempotency-key": key,
            "webhook-id": key,
            "webhook-timestamp": str(now),
        }
        if delivery.secret is not None:
            secret = self._secrets.get(delivery.secret)
            if secret is None:
                raise Undelivered(f"this worker has no secret {delivery.secret!r}; pass it to Webhook(secrets=)")
            if not secret.is_for_host(target.host):
                raise Undelivered(
                    f"the secret {delivery.secret!r} does not sign for the host {target.host}; add it to Secret(hosts=)"
                )
            headers["webhook-signature"] = secret.sign(key, now, body)
        return headers

    async def _post_and_describe_result(self, target: TargetUrl, body: bytes, headers: dict[str, str]) -> AttemptResult:
        try:
            async with asyncio.timeout(self._timeout):
                if self._client is None:
                    status, retry_after = await self._post_to_checked_address(target, body, headers)
                else:
                    status, retry_after = await self._post_with_given_client(self._client, target, body, headers)
        except Exception as error:  # of the resolver, TLS, HTTP: the kind is enough, a text may quote the URL
            return AttemptResult(f"no answer ({type(error).__name__})")
        return AttemptResult(f"HTTP {status}", status, retry_after)

    async def _post_to_checked_address(
        self, target: TargetUrl, body: bytes, headers: dict[str, str]
    ) -> tuple[int, str | None]:
        from gen_durable.contrib.webhook_public_address_poster import post_to_checked_address

        return await post_to_checked_address(
            target,
            body,
            headers,
            tls=self._tls,
            connect_timeout=self._timeout,
            allow_private_networks=self._allow_private_networks,
        )

    async def _post_with_given_client(
        self, client: httpx.AsyncClient, target: TargetUrl, body: bytes, headers: dict[str, str]
    ) -> tuple[int, str | None]:
        async with client.stream("POST", target.url, content=body, headers=headers, follow_redirects=False) as response:
            return response.status_code, response.headers.get("retry-after")


def _load_tls_context() -> ssl.SSLContext:
    """Load the trusted certificates: at the start of a worker, since it blocks longer than a delivery may."""
    try:
        import httpx
    except ModuleNotFoundError as error:
        raise ConfigError("Webhook needs httpx. Install the extra: pip install 'gen-durable[webhook]'.") from error
    return httpx.create_ssl_context()


def _check_secrets(secrets: Mapping[str, Secret]) -> dict[str, Secret]:
    for name, secret in secrets.items():
        if not isinstance(secret, Secret):
            raise ConfigError(
                f"The secret {name!r} of Webhook has no hosts. Pass Secret(key, hosts=[...]), which signs for these."
            )
    return dict(secrets)


def _resolve_allowed_ports(ports: Collection[int] | None, *, allow_private_networks: bool) -> frozenset[int] | None:
    """The ports that are allowed; None means every port."""
    if ports is None:
        return None if allow_private_networks else frozenset({443})
    if not ports or not all(isinstance(port, int) and 1 <= port <= 65535 for port in ports):
        raise ConfigError(f"ports= of Webhook must be numbers from 1 to 65535, as in (443, 8443), got {ports!r}.")
    return frozenset(ports)


def _parse_retry_after(retry_after: str | None) -> timedelta | None:
    """Read Retry-After: seconds, or a date."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return timedelta(seconds=min(int(retry_after[:12]), MAX_WAIT.total_seconds()))
    try:
        date = parsedate_to_datetime(retry_after)
        return max((date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime.now(UTC), timedelta(0))
    except ValueError:
        return None
