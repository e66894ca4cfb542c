"""`signal` and `debounce` of `Durable`: its calls that reach the holder of a unique key, or start one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from typing_extensions import TypedDict, Unpack

from gen_durable.durations import Duration
from gen_durable.handles import Handle, SignalOrStartResult, make_handle
from gen_durable.limits import LimitNames
from gen_durable.operations.caller_transaction_calls import CallerTransactionCalls, Notify, check_notify
from gen_durable.operations.signal import is_delivered_or_raise, make_outgoing_signal, send_signal
from gen_durable.operations.start_or_update import (
    debounced_id_or_raise,
    make_debounce,
    make_signal_or_start,
    run_start_or_update,
    signal_result_or_raise,
)
from gen_durable.signals import Signal
from gen_durable.starts import Start, Startable

if TYPE_CHECKING:
    from gen_durable.client import Durable
    from gen_durable.core.services import Services

S = TypeVar("S")
P = TypeVar("P")
R = TypeVar("R")


class DebouncedStartOptions(TypedDict, total=False):
    """The options of `Start` that `debounce` passes on."""

    queue: str | None
    priority: int
    partition_key: str | None
    keep: Duration | None
    limit: LimitNames | None
    group: tuple[str, str] | None
    metadata: Mapping[str, Any] | None


class SignalAndDebounceMethods:
    """Send signals, and debounce: a base class of `Durable`."""

    _services: Services
    _in_transaction: CallerTransactionCalls

    @overload
    async def signal(
        self,
        target: int | str | bytes | Handle[Any],
        signal: Signal[None],
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> bool: ...
    @overload
    async def signal(
        self,
        target: int | str | bytes | Handle[Any],
        signal: Signal[P],
        payload: P,
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> bool: ...
    @overload
    async def signal(
        self,
        target: str | bytes,
        signal: Signal[None],
        *,
        or_start: Start[R],
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> SignalOrStartResult[Handle[R]]: ...
    @overload
    async def signal(
        self,
        target: str | bytes,
        signal: Signal[P],
        payload: P,
        *,
        or_start: Start[R],
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> SignalOrStartResult[Handle[R]]: ...
    async def signal(
        self,
        target: int | str | bytes | Handle[Any],
        signal: Signal[Any],
        payload: object = None,
        *,
        or_start: Start[Any] | None = None,
        dedup_key: str | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> bool | SignalOrStartResult[Handle[Any]]:
        """Send a signal to an instance by id, or to the live holder of a unique key.

        Returns True if this call delivered it, False if a signal with this `dedup_key` was delivered before. Raises
        `NoTarget` if the instance is unknown or has ended. `connection` as in `insert`: the signal is sent when you
        commit, and the instance's row is locked until then.

        With `or_start` a key without a live holder starts an instance that has the signal in its inbox, in one atomic
        call. Returns the instance, and whether the call started it. Raises `NoTarget` only if the key is kept by an
        instance that has ended (`unique="forever"`). A `dedup_key` then counts for all instances of the key.
        """
        check_notify(notify, connection)
        if or_start is None:
            outgoing = make_outgoing_signal(self._services, target, signal, payload, dedup_key)
            if connection is None:
                verdict = await send_signal(self._services, outgoing)
            else:
                verdict = await self._in_transaction.signal(connection, outgoing, notify)
            return is_delivered_or_raise(verdict, target, signal.name)
        call = make_signal_or_start(target, signal, payload, dedup_key, or_start)
        if connection is None:
            result = await run_start_or_update(self._services, call, "signal")
        else:
            result = await self._in_transaction.start_or_update(connection, call, notify, "signal")
        return signal_result_or_raise(cast("Durable", self), result, call, or_start)

    @overload
    async def debounce(
        self,
        step: Startable[S, R],
        state: S,
        *,
        unique_key: str | bytes,
        delay: Duration,
        max_delay: Duration | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        **options: Unpack[DebouncedStartOptions],
    ) -> Handle[R]: ...
    @overload
    async def debounce(
        self,
        step: Startable[None, R],
        *,
        unique_key: str | bytes,
        delay: Duration,
        max_delay: Duration | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        **options: Unpack[DebouncedStartOptions],
    ) -> Handle[R]: ...
    async def debounce(
        self,
        step: Startable[Any, R],
        state: object = None,
        *,
        unique_key: str | bytes,
        delay: Duration,
        max_delay: Duration | None = None,
        connection: object = None,
        notify: Notify = "after_commit",
        **options: Unpack[DebouncedStartOptions],
    ) -> Handle[R]:
        """Start an instance after `delay`; a further call with this key before it begins restarts the delay.

        The instance runs once, with the newest state. `max_delay` is the longest wait since the first call, so that a
        steady stream of calls cannot postpone it for ever. A call after a worker has claimed the instance starts a
        new one. Returns the instance that waits. Raises `Duplicate` if the key is held by an instance that was not
        inserted by `debounce` and has begun. The other options are those of `Start`; they count when the instance is
        inserted, and later calls change the step and the state only.
        """
        check_notify(notify, connection)
        start = Start(step, state, unique_key=unique_key, unique_scope=["runnable"], delay=delay, **options)
        call = make_debounce(start, max_delay)
        if connection is None:
            result = await run_start_or_update(self._services, call, "debounce")
        else:
            result = await self._in_transaction.start_or_update(connection, call, notify, "debounce")
        return make_handle(
            cast("Durable", self), start, debounced_id_or_raise(result, start), is_new=result.verdict == "started"
        )
