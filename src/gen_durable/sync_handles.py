"""`SyncHandle`, the handle of a `SyncDurable`: the methods of `Handle` for code without `await`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from gen_durable.durations import Duration
from gen_durable.handles import Handle, result_or_raise
from gen_durable.instances import Cancellation, Ending, Instance
from gen_durable.signals import Signal

if TYPE_CHECKING:
    from gen_durable.operations.caller_transaction_calls import Notify
    from gen_durable.sync import SyncDurable

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SyncHandle(Generic[R]):
    """A reference to one instance and the type of its result, for code without `await`."""

    app: SyncDurable
    handle: Handle[R]

    @property
    def id(self) -> int:
        """The instance's id; a handle by key has none."""
        return self.handle.id

    @property
    def token(self) -> str:
        """The id for URLs, which cannot be guessed; see `Handle.token`."""
        return self.handle.token

    @property
    def machine(self) -> str | None:
        """The name of the instance's machine or job, where it is known."""
        return self.handle.machine

    def result(self, timeout: Duration | None = None) -> R:
        """Wait until the instance has ended and return its result; see `Handle.result` for what it raises."""
        return result_or_raise(self.wait(timeout), self.machine, timeout)

    def wait(self, timeout: Duration | None = None) -> Ending[R]:
        """Wait until the instance has ended, or for `timeout`: `Finished`, `Failed`, `Cancelled` or `Pending`."""
        return self.app._run_and_wait(self.handle.wait(timeout))  # pyright: ignore[reportPrivateUsage]  # its own handle

    def get(self) -> Instance:
        """Read the instance."""
        return self.app.get(self.handle.target)

    def cancel(
        self,
        *,
        reason: str = "cancelled",
        cascade: bool = True,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> Cancellation:
        """Cancel this instance, and with `cascade` all its descendants; see `SyncDurable.cancel`."""
        return self.app.cancel(
            self.handle.target, reason=reason, cascade=cascade, connection=connection, notify=notify, using=using
        )

    def delete(self) -> None:
        """Delete this instance after it has ended."""
        self.app.delete(self.handle.target)

    def retry(self) -> None:
        """Run this failed or cancelled instance again from its last step."""
        self.app.retry(self.handle.target)

    @overload
    def signal(
        self,
        signal: Signal[None],
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> bool: ...
    @overload
    def signal(
        self,
        signal: Signal[P],
        payload: P,
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> bool: ...
    def signal(
        self,
        signal: Signal[Any],
        payload: object = None,
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> bool:
        """Send a signal to this instance; see `SyncDurable.signal`."""
        return self.app.signal(
            self.handle.target,
            cast("Signal[object]", signal),
            payload,
            dedup_key=dedup_key,
            connection=connection,
            notify=notify,
            using=using,
        )

    def __repr__(self) -> str:
        return f"SyncHandle({self.handle.target!r})"
