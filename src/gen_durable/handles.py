"""Handles: a hold on one instance, and the ways to name one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from gen_durable.codec import Codec
from gen_durable.errors import InputError
from gen_durable.instances import Cancellation, Ending, Instance
from gen_durable.signals import Signal
from gen_durable.validation import check_key

if TYPE_CHECKING:
    from gen_durable.client import Durable

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Handle(Generic[R]):
    """A hold on one instance, knowing the type of its result."""

    app: Durable
    id: int
    codec: Codec[R]

    async def wait(self, timeout: timedelta | None = None) -> Ending[R]:
        """Wait until the instance has ended, or for `timeout`: `Finished`, `Failed`, `Cancelled` or `Pending`."""
        return await self.app.wait(self.id, self.codec, timeout)

    async def get(self) -> Instance:
        """The instance as it is now."""
        return await self.app.get(self.id)

    async def cancel(
        self, *, reason: str = "cancelled", cascade: bool = True, connection: object = None
    ) -> Cancellation:
        """Cancel this instance, and with `cascade` all its descendants; see `Durable.cancel`."""
        return await self.app.cancel(self.id, reason=reason, cascade=cascade, connection=connection)

    async def delete(self) -> None:
        """Delete this instance, which has ended; see `Durable.delete`."""
        await self.app.delete(self.id)

    async def retry(self) -> None:
        """Let this instance, which has failed or was cancelled, go on; see `Durable.retry`."""
        await self.app.retry(self.id)

    @overload
    async def signal(
        self, signal: Signal[None], *, dedup_key: str | None = None, connection: object = None
    ) -> bool: ...
    @overload
    async def signal(
        self, signal: Signal[P], payload: P, *, dedup_key: str | None = None, connection: object = None
    ) -> bool: ...
    async def signal(
        self,
        signal: Signal[Any],
        payload: object = None,
        *,
        dedup_key: str | None = None,
        connection: object = None,
    ) -> bool:
        """Send a signal to this instance; see `Durable.signal`."""
        return await self.app.signal(
            self.id, cast("Signal[object]", signal), payload, dedup_key=dedup_key, connection=connection
        )

    def __repr__(self) -> str:
        return f"Handle({self.id})"


def address(target: int | str | bytes | Handle[Any]) -> tuple[int | None, bytes | None]:
    """The id, or the unique key, that a target is named by."""
    if isinstance(target, Handle):
        return target.id, None
    if isinstance(target, bool) or not isinstance(target, (int, str, bytes)):
        raise InputError(f"an instance is named by its id (int) or its unique key (str), got {type(target).__name__}")
    if isinstance(target, int):
        if not 1 <= target <= 2**63 - 1:
            raise InputError(f"an instance id is a positive int, got {target}")
        return target, None
    return None, check_key(target, "unique_key")


def called(target: int | str | bytes | Handle[Any]) -> str:
    """How to call a target in a message."""
    if isinstance(target, (str, bytes)):
        return f"the holder of key {target!r}"
    return f"instance {target.id if isinstance(target, Handle) else target}"
