"""`SyncDurable`, the client for code without `await`: Django, Flask, scripts.

Each call blocks until the same call of a `Durable` returns. The `Durable` runs on one event loop in one thread; any
number of threads may call at the same time.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, overload

from typing_extensions import Unpack

from gen_durable.client import Durable
from gen_durable.core.insert_runner import OnConflict
from gen_durable.core.services import services_of
from gen_durable.encryption import PayloadCodec
from gen_durable.errors import ConfigError, InputError
from gen_durable.handles import make_handles, parse_target
from gen_durable.instances import Cancellation, Instance
from gen_durable.journal import Activity, Checkpoint, Progress, Transition
from gen_durable.limits import LimitState, Policy
from gen_durable.operations.caller_transaction_calls import CallerTransactionCalls, Notify, check_notify
from gen_durable.operations.cancel import to_cancellation_or_raise, to_storable_cancel_reason
from gen_durable.operations.insert import insert
from gen_durable.operations.instance_admin import SyncInstanceAdminOperations
from gen_durable.operations.signal_admin import SyncSignalAdminOperations
from gen_durable.pg.caller_connection import resolve_caller_connection
from gen_durable.starts import Start, Startable, StartOptions
from gen_durable.store.schema import DEFAULT_SCHEMA
from gen_durable.sync_handles import SyncHandle
from gen_durable.sync_signal_and_debounce import SyncSignalAndDebounceMethods
from gen_durable.telemetry import Events

S = TypeVar("S")
R = TypeVar("R")
T = TypeVar("T")


class SyncDurable(
    SyncInstanceAdminOperations["SyncHandle[Any]"],
    SyncSignalAdminOperations["SyncHandle[Any]"],
    SyncSignalAndDebounceMethods,
):
    """`with SyncDurable(dsn) as app: app.insert(...)`.

    The options are those of `Durable`, except `pool`: an asyncpg pool belongs to the event loop that opened it, and
    this client has a loop of its own.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str = DEFAULT_SCHEMA,
        pooler: Literal["transaction"] | None = None,
        listen_dsn: str | None = None,
        pool_size: int = 10,
        migrate: bool | None = None,
        roles: str | None = None,
        embedded_directory: str | Path | None = None,
        require_tls: Literal["verify-full"] | None = None,
        codec: PayloadCodec | None = None,
        read_unencrypted: bool = False,
    ) -> None:
        self._app = Durable(
            dsn,
            schema=schema,
            pooler=pooler,
            listen_dsn=listen_dsn,
            pool_size=pool_size,
            migrate=migrate,
            roles=roles,
            embedded_directory=embedded_directory,
            require_tls=require_tls,
            codec=codec,
            read_unencrypted=read_unencrypted,
        )
        self._in_transaction = CallerTransactionCalls(services_of(self._app))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._of_parents: list[object] = []  # kept for ever: they belong to the processes that this one was forked from

    @property
    def events(self) -> Events:
        """The events of this client; subscribers are called in its thread."""
        return self._app.events

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Connect, and check that the schema is there. A process that is forked later opens anew by itself."""
        self._reset_if_forked()
        if self._loop is not None:
            raise ConfigError("this SyncDurable is open already")
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gen_durable sync", daemon=True)
        self._thread.start()
        try:
            self._run_and_wait(self._app.open())
        except BaseException:
            self._stop_loop()
            raise

    def close(self) -> None:
        """Close all connections of this process."""
        self._reset_if_forked()
        if self._loop is None:
            return
        try:
            self._run_and_wait(self._app.close())
        finally:
            self._stop_loop()

    @overload
    def insert(
        self,
        step: Startable[S, R],
        state: S,
        *,
        on_conflict: Literal["raise", "existing"] = "raise",
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
        **options: Unpack[StartOptions],
    ) -> SyncHandle[R]: ...
    @overload
    def insert(
        self,
        step: Startable[S, R],
        state: S,
        *,
        on_conflict: Literal["skip"],
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
        **options: Unpack[StartOptions],
    ) -> SyncHandle[R] | None: ...
    @overload
    def insert(
        self,
        step: Startable[None, R],
        *,
        on_conflict: Literal["raise", "existing"] = "raise",
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
        **options: Unpack[StartOptions],
    ) -> SyncHandle[R]: ...
    @overload
    def insert(
        self,
        step: Startable[None, R],
        *,
        on_conflict: Literal["skip"],
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
        **options: Unpack[StartOptions],
    ) -> SyncHandle[R] | None: ...
    def insert(
        self,
        step: Startable[Any, R],
        state: object = None,
        *,
        on_conflict: OnConflict = "raise",
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
        **options: Unpack[StartOptions],
    ) -> SyncHandle[R] | None:
        """Start an instance at a step, or a job; see `Durable.insert`.

        With `connection` (psycopg, SQLAlchemy, Django) the insert is part of your transaction. `using` is the alias of
        a Django database and selects its connection of this thread.
        """
        start = Start(step, state, **options)
        (handle,) = self._insert([start], on_conflict, resolve_caller_connection(connection, using), notify)
        return handle

    @overload
    def insert_many(
        self,
        starts: Iterable[Start[R]],
        *,
        on_conflict: Literal["raise", "existing"] = "raise",
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> list[SyncHandle[R]]: ...
    @overload
    def insert_many(
        self,
        starts: Iterable[Start[R]],
        *,
        on_conflict: Literal["skip"],
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> list[SyncHandle[R] | None]: ...
    def insert_many(
        self,
        starts: Iterable[Start[R]],
        *,
        on_conflict: OnConflict = "raise",
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> list[SyncHandle[R]] | list[SyncHandle[R] | None]:
        """Start many instances in one transaction; see `Durable.insert_many`, and `insert` for `connection`."""
        handles = self._insert(list(starts), on_conflict, resolve_caller_connection(connection, using), notify)
        return cast("list[SyncHandle[R]]", handles)  # only "skip" returns None, as the overloads say

    def _insert(
        self, starts: list[Start[R]], on_conflict: OnConflict, connection: object, notify: Notify
    ) -> list[SyncHandle[R] | None]:
        check_notify(notify, connection)
        if connection is None:
            ids = self._run_and_wait(insert(services_of(self._app), starts, on_conflict))
        else:  # in the caller's thread, to which the connection belongs
            ids = self._get_transaction_calls().insert_blocking(connection, starts, on_conflict, notify)
        handles = make_handles(self._app, starts, ids, on_conflict)
        return [None if handle is None else SyncHandle(self, handle) for handle in handles]

    def cancel(
        self,
        target: int | str | bytes | SyncHandle[Any],
        *,
        reason: str = "cancelled",
        cascade: bool = True,
        connection: object = None,
        notify: Notify = "after_commit",
        using: str | None = None,
    ) -> Cancellation:
        """Cancel an instance, and with `cascade` all its descendants; see `Durable.cancel`, and `insert`."""
        caller_connection = resolve_caller_connection(connection, using)
        check_notify(notify, caller_connection)
        if caller_connection is not None:
            instance, key = parse_target(self._to_target(target), services_of(self._app))
            found = self._get_transaction_calls().cancel_blocking(
                caller_connection, instance, key, to_storable_cancel_reason(reason), notify, cascade=cascade
            )
            return to_cancellation_or_raise(found, self._to_target(target))
        return self._run_and_wait(self._app.cancel(self._to_target(target), reason=reason, cascade=cascade))

    def get(self, target: int | str | bytes | SyncHandle[Any]) -> Instance:
        """Read an instance; see `Durable.get`."""
        return self._run_and_wait(self._app.get(self._to_target(target)))

    def history(self, target: int | str | bytes | SyncHandle[Any], *, last: int | None = None) -> list[Transition]:
        """The committed outcomes of an instance; see `Durable.history`."""
        return self._run_and_wait(self._app.history(self._to_target(target), last=last))

    def activities(self, target: int | str | bytes | SyncHandle[Any], *, last: int | None = None) -> list[Activity]:
        """The activity log of an instance; see `Durable.activities`."""
        return self._run_and_wait(self._app.activities(self._to_target(target), last=last))

    def checkpoint(self, target: int | str | bytes | SyncHandle[Any]) -> Checkpoint | None:
        """The latest checkpoint of the current step; see `Durable.checkpoint`."""
        return self._run_and_wait(self._app.checkpoint(self._to_target(target)))

    def progress(self, target: int | str | bytes | SyncHandle[Any]) -> list[Progress]:
        """The progress reports of an instance; see `Durable.progress`."""
        return self._run_and_wait(self._app.progress(self._to_target(target)))

    def handle(self, target: int | str | bytes, step: Startable[Any, R]) -> SyncHandle[R]:
        """A handle on an instance by id or unique key; see `Durable.handle`."""
        return SyncHandle(self, self._app.handle(target, step))

    def handle_of_token(self, token: str, step: Startable[Any, R]) -> SyncHandle[R]:
        """A handle on the instance whose `handle.token` this is; see `Durable.handle_of_token`."""
        return SyncHandle(self, self._app.handle_of_token(token, step))

    def set_limit(self, name: str, policy: Policy) -> bool:
        """Create or change a limit; see `Durable.set_limit`."""
        return self._run_and_wait(self._app.set_limit(name, policy))

    def remove_limit(self, name: str) -> bool:
        """Remove a limit; see `Durable.remove_limit`."""
        return self._run_and_wait(self._app.remove_limit(name))

    def limits(self) -> list[LimitState]:
        """The state of every limit; see `Durable.limits`."""
        return self._run_and_wait(self._app.limits())

    def _get_transaction_calls(self) -> CallerTransactionCalls:
        """For calls on callers' connections. In a forked process the client is opened anew, to notify workers."""
        self._open_again_if_forked()
        return self._in_transaction

    def _run_and_wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        self._open_again_if_forked()
        if self._loop is None:
            coroutine.close()
            raise ConfigError("this SyncDurable is not open: use `with SyncDurable(...) as app:` or app.open()")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _to_target(self, target: int | str | bytes | SyncHandle[Any]) -> int | str | bytes:
        if not isinstance(target, SyncHandle):
            return target
        if target.app is not self:  # as in handles.parse_target
            raise InputError(f"{target!r} is a handle of another SyncDurable: call its own methods, or pass its id")
        return target.handle.target

    def _open_again_if_forked(self) -> None:
        if self._reset_if_forked():
            self.open()

    def _reset_if_forked(self) -> bool:
        """Forget what the parent process opened, if this process was forked since. Returns whether it was."""
        if self._loop is None or self._pid == os.getpid():
            return False
        self._of_parents += [self._loop, self._thread, *services_of(self._app).abandon_after_fork()]
        self._loop = self._thread = None
        return True

    def _stop_loop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(_cancel_other_tasks(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


async def _cancel_other_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
