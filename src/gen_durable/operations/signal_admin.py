"""Read, restore and delete the signals of instances, for `Durable` and `SyncDurable`."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

from gen_durable.encryption import signal_field
from gen_durable.errors import InputError, NotFound
from gen_durable.handles import Handle, describe_target, parse_target

if TYPE_CHECKING:
    from gen_durable.client import Durable
    from gen_durable.core.services import Services
    from gen_durable.signals import StoredSignal

T = TypeVar("T")
H = TypeVar("H")
Restoration: TypeAlias = Literal["restored", "duplicate", "not_rejected", "unknown"]
MAX_SHOWN: Final = 10_000


class SignalAdminOperations:
    """Read, restore and delete signals: a base class of `Durable`."""

    _services: Services

    async def signals(
        self, target: int | str | bytes | Handle[Any], *, limit: int = 1000, payloads: bool = False
    ) -> list[StoredSignal]:
        """The signals of an instance: unread ones first, then rejected ones, then consumed ones that have a dedup key.

        At most `limit`, oldest first. They come without their payloads unless `payloads=True`.
        """
        statement = self._services.inbox_statements.signals_of(
            *parse_target(target, self._services), _check_page_size(limit), payloads=payloads
        )
        found = await self._services.statement_runner.run(statement, "signals", may_run_twice=True)
        return [self._decrypt_signal(signal) for signal in found]

    async def rejected_signals(
        self, *, after: StoredSignal | None = None, limit: int = 1000, payloads: bool = False
    ) -> list[StoredSignal]:
        """Signals of all instances that no worker could read, by instance and age; `after` is the last of a page."""
        place = (0, 0) if after is None else (after.target_id, after.id)
        statement = self._services.inbox_statements.rejected_signals(place, _check_page_size(limit), payloads=payloads)
        found = await self._services.statement_runner.run(statement, "rejected_signals", may_run_twice=True)
        return [self._decrypt_signal(signal) for signal in found]

    async def restore_signals(self, ids: Iterable[int]) -> dict[int, Restoration]:
        """Put rejected signals back into their inboxes, so that every worker tries them again. Returns what became of
        each: "restored"; "duplicate" if another signal has taken its dedup key; "not_rejected"; or "unknown".
        """
        several = list(dict.fromkeys(ids))
        if any(type(one) is not int for one in several):
            raise InputError("restore_signals takes the ids of signals, as app.rejected_signals() returns them")
        statement = self._services.inbox_statements.restore_signals(several)
        verdicts = await self._services.statement_runner.run(statement, "restore_signals", may_run_twice=False)
        for queue in {queue for _, queue in verdicts if queue is not None}:
            self._services.notifier.wake(queue)
        return {one: _to_restoration(verdict) for one, (verdict, _) in zip(several, verdicts, strict=True)}

    async def delete_signals(self, target: int | str | bytes | Handle[Any], name: str | None = None) -> int:
        """Delete the unread and rejected signals of an instance: all, or those of one name. Returns how many.

        Their dedup keys are free again. An instance that one of them had woken waits again; a step that executes keeps
        what it was given. Raises `NotFound`.
        """
        statement = self._services.inbox_statements.delete_signals(*parse_target(target, self._services), name)
        found = await self._services.statement_runner.run(statement, "delete_signals", may_run_twice=False)
        if found is None:
            raise NotFound(f"{describe_target(target)} is unknown")
        self._services.notifier.wake_queues(found.woken_queues)
        return found.deleted

    def _decrypt_signal(self, signal: StoredSignal) -> StoredSignal:
        encryption, raw = self._services.encryption, signal.raw_payload
        if encryption is None or raw is None:
            return signal
        payload = encryption.decrypt_if_possible(raw, signal.target_id, signal_field(signal.name))
        return dataclasses.replace(signal, raw_payload=payload)


class SyncSignalAdminOperations(ABC, Generic[H]):
    """The blocking counterpart, a base class of `SyncDurable`; `H` is its type of handle."""

    _app: Durable

    def signals(
        self, target: int | str | bytes | H, *, limit: int = 1000, payloads: bool = False
    ) -> list[StoredSignal]:
        """The signals of an instance; see `Durable.signals`."""
        return self._run_and_wait(self._app.signals(self._to_target(target), limit=limit, payloads=payloads))

    def rejected_signals(
        self, *, after: StoredSignal | None = None, limit: int = 1000, payloads: bool = False
    ) -> list[StoredSignal]:
        """Signals that no worker could read; see `Durable.rejected_signals`."""
        return self._run_and_wait(self._app.rejected_signals(after=after, limit=limit, payloads=payloads))

    def restore_signals(self, ids: Iterable[int]) -> dict[int, Restoration]:
        """Put rejected signals back; see `Durable.restore_signals`."""
        return self._run_and_wait(self._app.restore_signals(ids))

    def delete_signals(self, target: int | str | bytes | H, name: str | None = None) -> int:
        """Delete the unread and rejected signals of an instance; see `Durable.delete_signals`."""
        return self._run_and_wait(self._app.delete_signals(self._to_target(target), name))

    @abstractmethod
    def _to_target(self, target: int | str | bytes | H) -> int | str | bytes: ...

    @abstractmethod
    def _run_and_wait(self, coroutine: Coroutine[Any, Any, T]) -> T: ...


def _check_page_size(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= MAX_SHOWN:
        raise InputError(f"limit must be 1 to {MAX_SHOWN:,}, got {limit!r}")
    return limit


def _to_restoration(verdict: str) -> Restoration:
    match verdict:
        case "restored" | "duplicate" | "not_rejected" | "unknown":
            return verdict
        case _:
            raise AssertionError(verdict)
