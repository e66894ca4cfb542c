"""`Durable`, the client of one database: insert, signal, cancel, wait, read, and set limits.

A process that has only a `Durable` runs no steps; a `Worker` made from it does. There is no global state: everything
hangs on the object. Each method checks its arguments and calls one function of `gen_durable.operations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, overload

from typing_extensions import Unpack

from gen_durable.core.insert_runner import OnConflict
from gen_durable.core.services import Services
from gen_durable.durable_database import DurableDatabase
from gen_durable.durations import Duration
from gen_durable.encryption import PayloadCodec, PayloadEncryption
from gen_durable.handle_tokens import decode_handle_token
from gen_durable.handles import Handle, make_handles, parse_target
from gen_durable.instances import Cancellation, Instance
from gen_durable.journal import Activity, Checkpoint, Progress, Transition
from gen_durable.limits import LimitNames, LimitState, Policy
from gen_durable.operations import limits, read_instance
from gen_durable.operations.caller_transaction_calls import CallerTransactionCalls, Notify, check_notify
from gen_durable.operations.cancel import cancel, to_cancellation_or_raise, to_storable_cancel_reason
from gen_durable.operations.insert import insert
from gen_durable.operations.instance_admin import InstanceAdminOperations
from gen_durable.operations.signal_admin import SignalAdminOperations
from gen_durable.operations.signal_and_debounce import SignalAndDebounceMethods
from gen_durable.pg.pool import DriverPool
from gen_durable.signals import SignalMessage
from gen_durable.starts import Scope, Start, Startable, StartOptions, Unique, to_step_spec
from gen_durable.store.schema import DEFAULT_SCHEMA, Schema
from gen_durable.telemetry import Events

S = TypeVar("S")
R = TypeVar("R")


class Durable(InstanceAdminOperations, SignalAdminOperations, SignalAndDebounceMethods):
    """The client of one database: `async with Durable(dsn) as app:`.

    Without a DSN it uses DATABASE_URL, else the embedded server. `Durable(pool=pool)` runs its calls through your pool.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        pool: DriverPool | None = None,
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
        """Configure the client; `open` or `async with` connects.

        A DSN may name several hosts: the writable one is used. Pass `pooler="transaction"` if the DSN leads through
        PgBouncer or the like; then `listen_dsn`, a direct DSN, lets notifications wake workers (without it they poll).
        `migrate=True` migrates the schema on opening; by default only the embedded server's is. `roles`, a prefix,
        also creates roles with few rights each (docs/howto/roles.md).

        `pool`, an `asyncpg.Pool` that you open and close, runs the calls of this object. A `Worker` needs a DSN as
        well: it has connections of its own, so that user code cannot hold them.

        `require_tls="verify-full"` refuses, before it connects, a DSN that leads over a network without
        `sslmode=verify-full` (docs/howto/operate.md). GEN_DURABLE_REQUIRE_TLS has the same effect.

        `codec` encrypts states, results, signals, errors and the journal, for workers too. Unencrypted payloads are
        then refused, unless `read_unencrypted=True` (docs/howto/encrypt.md).
        """
        database = DurableDatabase(
            dsn,
            pool,
            Schema(schema),
            pooler=pooler,
            listen_dsn=listen_dsn,
            pool_size=pool_size,
            migrate=migrate,
            roles=roles,
            embedded_directory=embedded_directory,
            require_tls=require_tls,
        )
        encryption = None if codec is None else PayloadEncryption(codec, schema, read_unencrypted=read_unencrypted)
        self._services = Services(database, encryption)
        self._in_transaction = CallerTransactionCalls(self._services)

    @property
    def events(self) -> Events:
        """The events of this client and of the workers made from it."""
        return self._services.events

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and check that the schema is there."""
        await self._services.open()

    async def close(self) -> None:
        """Close the client's own connections. Stop the workers first."""
        await self._services.close()

    # The options of `Start`, spelled out where an editor shows them; the other signatures pass them on.
    @overload
    async def insert(
        self,
        step: Startable[S, R],
        state: S,
        *,
        on_conflict: Literal["raise", "existing"] = "raise",
        unique_key: str | bytes | None = None,
        unique: Unique | None = None,
        unique_scope: Iterable[Scope] | None = None,
        keep: Duration | None = None,
        queue: str | None = None,
        priority: int = 0,
        partition_key: str | None = None,
        delay: Duration | None = None,
        schedule_at: datetime | None = None,
        limit: LimitNames | None = None,
        group: tuple[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        signals: Iterable[SignalMessage] = (),
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> Handle[R]: ...
    @overload
    async def insert(
        self,
        step: Startable[S, R],
        state: S,
        *,
        on_conflict: Literal["skip"],
        connection: object = None,
        notify: Notify = "after_commit",
        **options: Unpack[StartOptions],
    ) -> Handle[R] | None: ...
    @overload
    async def insert(
        self,
        step: Startable[None, R],
        *,
        on_conflict: Literal["raise", "existing"] = "raise",
        connection: object = None,
        notify: Notify = "after_commit",
        **options: Unpack[StartOptions],
    ) -> Handle[R]: ...
    @overload
    async def insert(
        self,
        step: Startable[None, R],
        *,
        on_conflict: Literal["skip"],
        connection: object = None,
        notify: Notify = "after_commit",
        **options: Unpack[StartOptions],
    ) -> Handle[R] | None: ...
    async def insert(
        self,
        step: Startable[Any, R],
        state: object = None,
        *,
        on_conflict: OnConflict = "raise",
        connection: object = None,
        notify: Notify = "after_commit",
        **options: Unpack[StartOptions],
    ) -> Handle[R] | None:
        """Start an instance at a step, or a job. The other options are those of `Start`.

        If the `unique_key` is taken, "raise" raises `Duplicate`, "existing" returns the holder, "skip" returns None.
        With `unique="forever"` a key stays taken after the instance has ended, as long as its row is kept. `signals`
        go to a new instance only, with its insert: `signals=[payment.of(Paid(100))]`.
        With `connection`, one of yours (asyncpg, psycopg, SQLAlchemy), the insert is a part of your transaction: the
        instance starts when you commit, and never if you roll back. Workers are notified right after the commit, by
        this client if it is open; "in_transaction" has your commit notify them, which Postgres does one by one, and
        "never" leaves it to their polling.
        """
        (handle,) = await self._insert([Start(step, state, **options)], on_conflict, connection, notify)
        return handle

    @overload
    async def insert_many(
        self,
        starts: Iterable[Start[R]],
        *,
        on_conflict: Literal["raise", "existing"] = "raise",
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> list[Handle[R]]: ...
    @overload
    async def insert_many(
        self,
        starts: Iterable[Start[R]],
        *,
        on_conflict: Literal["skip"],
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> list[Handle[R] | None]: ...
    async def insert_many(
        self,
        starts: Iterable[Start[R]],
        *,
        on_conflict: OnConflict = "raise",
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> list[Handle[R]] | list[Handle[R] | None]:
        """Start many instances in one transaction: all or none. Returns handles in the order of `starts`.

        `connection` and `notify` as in `insert`.
        """
        # Only "skip" returns None for some, as the overloads say.
        return cast("list[Handle[R]]", await self._insert(list(starts), on_conflict, connection, notify))

    async def _insert(
        self, starts: Sequence[Start[R]], on_conflict: OnConflict, connection: object, notify: Notify
    ) -> list[Handle[R] | None]:
        check_notify(notify, connection)
        if connection is None:
            ids = await insert(self._services, starts, on_conflict)
        else:
            ids = await self._in_transaction.insert(connection, starts, on_conflict, notify)
        return make_handles(self, starts, ids, on_conflict)

    async def cancel(
        self,
        target: int | str | bytes | Handle[Any],
        *,
        reason: str = "cancelled",
        cascade: bool = True,
        connection: object = None,
        notify: Notify = "after_commit",
    ) -> Cancellation:
        """Cancel an instance by id, or the live holder of a unique key; with `cascade` all its descendants too.

        A waiting instance ends at once. The worker of an executing one stops the step and runs `on_cancel`; a `def`
        step cannot be stopped, and is cancelled when it returns. A step that ends the instance first wins. Returns how
        many were cancelled; none if the instance had ended. Raises `NotFound`. `connection` as in `insert`: the
        instance is cancelled when you commit, its row and its parent's are locked until then, and workers cancel its
        descendants afterwards, uncounted.
        """
        check_notify(notify, connection)
        reason = to_storable_cancel_reason(reason)
        if connection is None:
            return await cancel(self._services, target, reason, cascade=cascade)
        instance, key = parse_target(target, self._services)
        found = await self._in_transaction.cancel(connection, instance, key, reason, notify, cascade=cascade)
        return to_cancellation_or_raise(found, target)

    async def get(self, target: int | str | bytes | Handle[Any]) -> Instance:
        """Read an instance by id or by unique key: its live holder, else the last one inserted. Raises `NotFound`."""
        return await read_instance.get_instance(self._services, target)

    async def history(self, target: int | str | bytes | Handle[Any], *, last: int | None = None) -> list[Transition]:
        """The committed outcomes of an instance in order, if its machine keeps them; or the `last` few."""
        return await read_instance.read_history(self._services, target, last)

    async def activities(self, target: int | str | bytes | Handle[Any], *, last: int | None = None) -> list[Activity]:
        """The finished `ctx.run` calls of all steps, in the order in which they began; or the `last` few."""
        return await read_instance.read_activities(self._services, target, last)

    async def checkpoint(self, target: int | str | bytes | Handle[Any]) -> Checkpoint | None:
        """The latest `ctx.checkpoint` of the instance's current step, or None."""
        return await read_instance.read_checkpoint(self._services, target)

    async def progress(self, target: int | str | bytes | Handle[Any]) -> list[Progress]:
        """The latest `ctx.progress` of each step of an instance; the most recent comes last."""
        return await read_instance.read_progress(self._services, target)

    def handle(self, target: int | str | bytes, step: Startable[Any, R]) -> Handle[R]:
        """A handle on an instance by id or unique key; `step`, where it was started, gives the type of its result.

        A handle by key looks its instance up with each call: the live holder, else the last one inserted; `signal` and
        `cancel` only the live holder.
        """
        instance, key = parse_target(target, self._services)
        spec = to_step_spec(step, "handle")
        return Handle(self, key or cast("int", instance), spec.result_codec, spec.machine.name)

    def handle_of_token(self, token: str, step: Startable[Any, R]) -> Handle[R]:
        """A handle on the instance whose `handle.token` this is; `step` as in `handle`. Does not call the database.

        Raises `InputError` for any other text, also for a token of another installation. The instance may have been
        deleted, and may be of another machine than that of `step`: `get` tells.
        """
        return self.handle(decode_handle_token(self._services.handle_token_key, token), step)

    async def set_limit(self, name: str, policy: Policy) -> bool:
        """Create or change a limit, for all workers, from now on. Returns whether that changed anything.

        Running steps go on; once this returns, no worker begins a step above the new limit.
        """
        return await limits.set_limit(self._services, name, policy)

    async def remove_limit(self, name: str) -> bool:
        """Remove a limit: rows that name it run freely, new ones are refused. Returns whether it existed."""
        return await limits.remove_limit(self._services, name)

    async def limits(self) -> list[LimitState]:
        """The state of every limit, by partition: its use, and how many rows wait."""
        return await limits.list_limits(self._services)
