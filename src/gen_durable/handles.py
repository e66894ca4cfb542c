"""`Handle`, a reference to one instance, and the ways to name an instance in a call."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, assert_never, cast, overload

import msgspec

from gen_durable.core.services import Services, services_of
from gen_durable.durations import Duration
from gen_durable.errors import InputError, InstanceCancelled, InstanceFailed, WaitTimeout
from gen_durable.handle_tokens import encode_handle_token
from gen_durable.instances import Cancellation, Cancelled, Ending, Failed, Finished, Instance, Pending
from gen_durable.json_codec import JsonCodec
from gen_durable.operations.wait import wait
from gen_durable.signals import Signal
from gen_durable.starts import Start
from gen_durable.validation import to_stored_key

if TYPE_CHECKING:
    from gen_durable.client import Durable
    from gen_durable.core.insert_runner import OnConflict
    from gen_durable.operations.caller_transaction_calls import Notify

P = TypeVar("P")
R = TypeVar("R")
H_co = TypeVar("H_co", covariant=True)


class Handle(msgspec.Struct, Generic[R], frozen=True, eq=False):
    """A reference to one instance and the type of its result. `machine` is None where it is unknown.

    `target` is the id, or the unique key of a handle that looks its instance up with each call (`Durable.handle`). A
    `Struct`, because a batch of inserts makes thousands of them, and a frozen dataclass takes three times as long.
    """

    app: Durable
    target: int | bytes
    codec: JsonCodec[R]
    machine: str | None = None
    # When this process inserted it, on the monotonic clock: `wait` polls a new instance later.
    _inserted_at: float = -math.inf

    @property
    def id(self) -> int:
        """The instance's id. A handle by key has none: read it with `(await handle.get()).id`."""
        if isinstance(self.target, bytes):
            raise InputError(
                f"the handle of key {self.target!r} has no id: it looks its instance up with each call. "
                "Use (await handle.get()).id"
            )
        return self.target

    @property
    def token(self) -> str:
        """The id for URLs: 32 URL-safe characters that cannot be guessed; `Durable.handle_of_token` reads it.

        It is computed here, without a call of the database, and stays the same for as long as the instance exists. A
        handle by key has none.
        """
        return encode_handle_token(services_of(self.app).handle_token_key, self.id)

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the instance has ended and return its result.

        Raises `InstanceFailed`, `InstanceCancelled`, or, after `timeout`, `WaitTimeout` (a `TimeoutError`).
        """
        return result_or_raise(await self.wait(timeout), self.machine, timeout)

    async def wait(self, timeout: Duration | None = None) -> Ending[R]:
        """Wait until the instance has ended, or for `timeout`: `Finished`, `Failed`, `Cancelled` or `Pending`."""
        return await wait(services_of(self.app), self.target, self.codec, timeout, self._inserted_at)

    async def get(self) -> Instance:
        """Read the instance."""
        return await self.app.get(self.target)

    async def cancel(
        self,
        *,
        reason: str = "cancelled",
        cascade: bool = True,
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> Cancellation:
        """Cancel this instance, and with `cascade` all its descendants; see `Durable.cancel`."""
        return await self.app.cancel(self.target, reason=reason, cascade=cascade, connection=connection, notify=notify)

    async def delete(self) -> None:
        """Delete this instance after it has ended; see `Durable.delete`."""
        await self.app.delete(self.target)

    async def retry(self) -> None:
        """Run this failed or cancelled instance again from its last step; see `Durable.retry`."""
        await self.app.retry(self.target)

    @overload
    async def signal(
        self,
        signal: Signal[None],
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> bool: ...
    @overload
    async def signal(
        self,
        signal: Signal[P],
        payload: P,
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> bool: ...
    async def signal(
        self,
        signal: Signal[Any],
        payload: object = None,
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> bool:
        """Send a signal to this instance; see `Durable.signal`."""
        return await self.app.signal(
            self.target,
            cast("Signal[object]", signal),
            payload,
            dedup_key=dedup_key,
            connection=connection,
            notify=notify,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Handle):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        return self.app, self.target, self.codec, self.machine

    def __repr__(self) -> str:
        return f"Handle({self.target!r})"


@dataclass(frozen=True, slots=True)
class SignalOrStartResult(Generic[H_co]):
    """What `signal(..., or_start=...)` did: the instance, whether this call started it and delivered the signal to it.

    It counts as true if this call delivered the signal, as the result of a plain `signal` does. If not, a signal with
    this `dedup_key` was delivered before, and `handle` is the instance that received it.
    """

    handle: H_co
    is_new: bool
    is_delivered: bool

    def __bool__(self) -> bool:
        return self.is_delivered


def result_or_raise(ending: Ending[R], machine: str | None, timeout: Duration | None) -> R:
    """The result of an ended instance; raises for every other ending."""
    match ending:
        case Finished(result=result):
            return result
        case Failed(id=id, error=error):
            raise InstanceFailed(id, machine, error)
        case Cancelled(id=id, reason=reason):
            raise InstanceCancelled(id, machine, reason)
        case Pending(id=id):
            span = timeout if isinstance(timeout, timedelta) else f"{timeout} s"
            raise WaitTimeout(id, machine, f"has not ended within {span}; it goes on, and can be waited for again")
        case _:
            assert_never(ending)


def make_handles(
    app: Durable, starts: Sequence[Start[R]], ids: Sequence[int | None], on_conflict: OnConflict
) -> list[Handle[R] | None]:
    """Handles on inserted instances; None where an instance was skipped."""
    inserted_at = time.monotonic() if on_conflict != "existing" else -math.inf
    return [
        None
        if instance is None
        else Handle(app, instance, start.step.result_codec, start.step.machine.name, inserted_at)
        for start, instance in zip(starts, ids, strict=True)
    ]


def make_handle(app: Durable, start: Start[R], instance: int, *, is_new: bool) -> Handle[R]:
    """A handle on an instance that a call has reached; an existing one may have ended."""
    inserted_at = time.monotonic() if is_new else -math.inf
    return Handle(app, instance, start.step.result_codec, start.step.machine.name, inserted_at)


def parse_target(target: int | str | bytes | Handle[Any], services: Services) -> tuple[int | None, bytes | None]:
    """The id or the unique key of a target. Raises `InputError` for a handle of another `Durable`."""
    if isinstance(target, Handle):
        if services_of(target.app) is not services:
            # The same id may belong to another instance there.
            raise InputError(f"{target!r} is a handle of another Durable: call its own methods, or pass its id")
        target = target.target
    if isinstance(target, bool) or not isinstance(target, (int, str, bytes)):
        raise InputError(f"an instance is named by its id (int) or its unique key (str), got {type(target).__name__}")
    if isinstance(target, int):
        if not 1 <= target <= 2**63 - 1:
            raise InputError(f"an instance id is a positive int, got {target}")
        return target, None
    return None, to_stored_key(target, "unique_key")


def describe_target(target: int | str | bytes | Handle[Any]) -> str:
    """The name of a target in messages."""
    if isinstance(target, Handle):
        target = target.target
    return f"instance {target}" if isinstance(target, int) else f"the holder of key {target!r}"
