"""`signal` and `debounce` of `SyncDurable`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from typing_extensions import Unpack

from gen_durable.client import Durable
from gen_durable.core.services import services_of
from gen_durable.durations import Duration
from gen_durable.handles import Handle, SignalOrStartResult, make_handle
from gen_durable.operations.caller_transaction_calls import CallerTransactionCalls, Notify, check_notify
from gen_durable.operations.signal import is_delivered_or_raise, make_outgoing_signal, send_signal
from gen_durable.operations.signal_and_debounce import DebouncedStartOptions
from gen_durable.operations.start_or_update import (
    debounced_id_or_raise,
    make_debounce,
    make_signal_or_start,
    run_start_or_update,
    signal_result_or_raise,
)
from gen_durable.pg.caller_connection import resolve_caller_connection
from gen_durable.signals import Signal
from gen_durable.starts import Start, Startable
from gen_durable.store.start_or_update import StartOrUpdate, StartOrUpdateResult
from gen_durable.sync_handles import SyncHandle

if TYPE_CHECKING:
    from gen_durable.sync import SyncDurable

S = TypeVar("S")
P = TypeVar("P")
R = TypeVar("R")
T = TypeVar("T")


class SyncSignalAndDebounceMethods(ABC):
    """Send signals, and debounce: a base class of `SyncDurable`."""

    _app: Durable

    @overload
    def signal(
        self,
        target: int | str | bytes | SyncHandle[Any],
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
        target: int | str | bytes | SyncHandle[Any],
        signal: Signal[P],
        payload: P,
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> bool: ...
    @overload
    def signal(
        self,
        target: str | bytes,
        signal: Signal[None],
        *,
        or_start: Start[R],
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> SignalOrStartResult[SyncHandle[R]]: ...
    @overload
    def signal(
        self,
        target: str | bytes,
        signal: Signal[P],
        payload: P,
        *,
        or_start: Start[R],
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> SignalOrStartResult[SyncHandle[R]]: ...
    def signal(
        self,
        target: int | str | bytes | SyncHandle[Any],
        signal: Signal[Any],
        payload: object = None,
        *,
        or_start: Start[Any] | None = None,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> bool | SignalOrStartResult[SyncHandle[Any]]:
        """Send a signal, or start its target; see `Durable.signal`, and `insert` for `connection`."""
        caller_connection = resolve_caller_connection(connection, using)
        check_notify(notify, caller_connection)
        receiver = self._to_target(target)
        if or_start is not None:
            call = make_signal_or_start(receiver, signal, payload, dedup_key, or_start)
            result = self._start_or_update(call, caller_connection, notify, "signal")
            done = signal_result_or_raise(self._app, result, call, or_start)
            return SignalOrStartResult(self._sync_handle(done.handle), done.is_new, done.is_delivered)
        outgoing = make_outgoing_signal(services_of(self._app), receiver, signal, payload, dedup_key)
        if caller_connection is None:
            verdict = self._run_and_wait(send_signal(services_of(self._app), outgoing))
        else:
            verdict = self._get_transaction_calls().signal_blocking(caller_connection, outgoing, notify)
        return is_delivered_or_raise(verdict, receiver, signal.name)

    @overload
    def debounce(
        self,
        step: Startable[S, R],
        state: S,
        *,
        unique_key: str | bytes,
        delay: Duration,
        max_delay: Duration | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
        **options: Unpack[DebouncedStartOptions],
    ) -> SyncHandle[R]: ...
    @overload
    def debounce(
        self,
        step: Startable[None, R],
        *,
        unique_key: str | bytes,
        delay: Duration,
        max_delay: Duration | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
        **options: Unpack[DebouncedStartOptions],
    ) -> SyncHandle[R]: ...
    def debounce(
        self,
        step: Startable[Any, R],
        state: object = None,
        *,
        unique_key: str | bytes,
        delay: Duration,
        max_delay: Duration | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
        **options: Unpack[DebouncedStartOptions],
    ) -> SyncHandle[R]:
        """Start an instance after a delay that further calls restart; see `Durable.debounce`, and `insert`."""
        caller_connection = resolve_caller_connection(connection, using)
        check_notify(notify, caller_connection)
        start = Start(step, state, unique_key=unique_key, unique_scope=["runnable"], delay=delay, **options)
        result = self._start_or_update(make_debounce(start, max_delay), caller_connection, notify, "debounce")
        is_new = result.verdict == "started"
        return self._sync_handle(make_handle(self._app, start, debounced_id_or_raise(result, start), is_new=is_new))

    def _start_or_update(
        self, call: StartOrUpdate, connection: object, notify: Notify, operation: str
    ) -> StartOrUpdateResult:
        if connection is None:
            return self._run_and_wait(run_start_or_update(services_of(self._app), call, operation))
        # In the caller's thread, to which the connection belongs.
        return self._get_transaction_calls().start_or_update_blocking(connection, call, notify, operation)

    def _sync_handle(self, handle: Handle[R]) -> SyncHandle[R]:
        return SyncHandle(cast("SyncDurable", self), handle)

    @abstractmethod
    def _to_target(self, target: int | str | bytes | SyncHandle[Any]) -> int | str | bytes: ...

    @abstractmethod
    def _get_transaction_calls(self) -> CallerTransactionCalls: ...

    @abstractmethod
    def _run_and_wait(self, coroutine: Coroutine[Any, Any, T]) -> T: ...
