"""The client: `Durable`, the door to one database.

In: typed calls. Out: rows in Postgres, and typed answers. A process that has only a `Durable` inserts, signals and
waits; a `Worker` made from it also runs. There is no global: everything hangs on the object that you made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, cast, overload

from typing_extensions import Unpack

from gen_durable.codec import Codec
from gen_durable.core.completions import CompletionWatcher
from gen_durable.core.notifier import Notifier
from gen_durable.core.requests import Requests
from gen_durable.database import Database
from gen_durable.durations import Duration
from gen_durable.encryption import ERROR, RESULT, PayloadCodec, PayloadEncryption
from gen_durable.errors import ConfigError, DatabaseUnavailable, InputError, NotFound
from gen_durable.handles import Handle, address, called
from gen_durable.instances import Cancellation, Cancelled, Ending, Failed, Finished, Instance, Pending, Status
from gen_durable.journal import Activity, Checkpoint, Progress, Transition, check_last
from gen_durable.limits import LimitNames, LimitState, Policy, check_policy
from gen_durable.operations.admin import Desk
from gen_durable.operations.cancel import Canceller
from gen_durable.operations.in_transaction import TransactionCalls
from gen_durable.operations.insert import Inserter, OnConflict
from gen_durable.operations.signal import SignalSender
from gen_durable.orders import cancellation_of, delivery_of, reason_of, was_delivered
from gen_durable.outcomes import LIVE, Scope, Start, Startable, StartOptions
from gen_durable.pg.connection import Target
from gen_durable.pg.faults import ConnectionLost
from gen_durable.pg.pool import DriverPool, Pool
from gen_durable.signals import Signal
from gen_durable.store.admin import AdminStatements
from gen_durable.store.journal import JournalCalls
from gen_durable.store.schema import DEFAULT_SCHEMA, Schema
from gen_durable.store.statements import Statements
from gen_durable.store.types import FinishedInstance
from gen_durable.telemetry import Events
from gen_durable.validation import check_delay, check_name

S = TypeVar("S")
P = TypeVar("P")
R = TypeVar("R")


class Durable(Desk):
    """One database. `async with Durable(dsn) as app:`; without a DSN, DATABASE_URL, else the embedded server.

    `Durable(pool=pool)` asks through a pool of yours.
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
        codec: PayloadCodec | None = None,
        read_unsealed: bool = False,
    ) -> None:
        """Say where the database is; nothing is connected until `open` or `async with`.

        A DSN may name several hosts; the one that can be written to is used. `pooler="transaction"` if it leads through
        PgBouncer or the like; then `listen_dsn`, a direct DSN, lets workers hear of new work at once (without it they
        poll). `migrate=True` brings the schema up to date on opening; by default only the embedded server's is.
        `roles`, a prefix, has it make roles with few rights each as well (docs/howto/roles.md).

        `pool`, an `asyncpg.Pool` that you have opened and will close, serves the calls of this object. Without a DSN
        beside it that is all there is: a `Worker` has connections of its own, so that user code cannot hold them.

        `codec` encrypts what states, results, signals, errors and the journal hold; workers have it from here. What is
        stored in clear is refused then, unless `read_unsealed=True` (docs/howto/encrypt.md).
        """
        self._schema = Schema(schema)
        self._site = Database(
            dsn,
            pool,
            self._schema,
            pooler=pooler,
            listen_dsn=listen_dsn,
            pool_size=pool_size,
            migrate=migrate,
            roles=roles,
            embedded_directory=embedded_directory,
        )
        self._open = False
        self.calls = Statements(self._schema)
        self.journal = JournalCalls(self._schema)
        self.reads = AdminStatements(self._schema)
        self.events = Events()
        self.seal = None if codec is None else PayloadEncryption(codec, schema, read_unsealed=read_unsealed)
        self.ask = Requests(self._asking, self._schema.name)
        self.own = Requests(self._opened, self._schema.name)
        """As `ask`, for what a worker asks: never through a pool that user code may hold."""
        self._insert = Inserter(self.ask, self.calls, self._ring, self.seal)
        self._deliver = SignalSender(self.ask, self.calls, self.seal)
        self.guest = TransactionCalls(self.calls, self.seal)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def ensure_open(self) -> bool:
        """Open if that was not done yet; tells whether it was done now."""
        if self._open:
            return False
        await self.open()
        return True

    async def open(self) -> None:
        """Connect, and check that the schema is there."""
        if self._open:
            raise ConfigError("this Durable is open already")
        await self._site.open()
        self.pool = self._site.pool
        self.installation = self._site.installation
        self.wake = Notifier(self.pool, self.calls, self.own, self._site.listening)
        self._cancel = Canceller(self.ask, self.calls, self.wake)
        self.endings = CompletionWatcher(self.pool, self.calls)
        self._open = True

    async def close(self) -> None:
        """Close all connections of its own. Workers must be stopped before."""
        if not self._open:
            return
        self._open = False
        await self.endings.stop()
        await self.wake.close()
        await self._site.close()

    # The options of `Start`, spelled out where an editor shows them; the other signatures only pass them on.
    @overload
    async def insert(
        self,
        step: Startable[S, R],
        state: S,
        *,
        on_conflict: Literal["raise", "existing"] = "raise",
        unique_key: str | bytes | None = None,
        unique_scope: Iterable[Scope] = LIVE,
        queue: str | None = None,
        priority: int = 0,
        partition_key: str | None = None,
        delay: Duration | None = None,
        schedule_at: datetime | None = None,
        limit: LimitNames | None = None,
        group: tuple[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        connection: object = None,
    ) -> Handle[R]: ...
    @overload
    async def insert(
        self,
        step: Startable[S, R],
        state: S,
        *,
        on_conflict: Literal["skip"],
        connection: object = None,
        **options: Unpack[StartOptions],
    ) -> Handle[R] | None: ...
    async def insert(
        self,
        step: Startable[S, R],
        state: S,
        *,
        on_conflict: OnConflict = "raise",
        connection: object = None,
        **options: Unpack[StartOptions],
    ) -> Handle[R] | None:
        """Start an instance at a step, or a job. The options beside these two are those of `Start`.

        When the `unique_key` is taken: "raise" raises `Duplicate`, "existing" returns the holder, "skip" returns None.
        With `connection`, one of yours (asyncpg, psycopg, SQLAlchemy), it is a part of your transaction: it starts when
        you commit, and never if you roll back.
        """
        (handle,) = await self.insert_starts([Start(step, state, **options)], on_conflict, connection)
        return handle

    @overload
    async def insert_many(
        self,
        starts: Iterable[Start[R]],
        *,
        on_conflict: Literal["raise", "existing"] = "raise",
        connection: object = None,
    ) -> list[Handle[R]]: ...
    @overload
    async def insert_many(
        self, starts: Iterable[Start[R]], *, on_conflict: Literal["skip"], connection: object = None
    ) -> list[Handle[R] | None]: ...
    async def insert_many(
        self, starts: Iterable[Start[R]], *, on_conflict: OnConflict = "raise", connection: object = None
    ) -> list[Handle[R]] | list[Handle[R] | None]:
        """Start many instances in one transaction: all or none. The answers are in the order of `starts`.

        `connection` as in `insert`.
        """
        # Only "skip" leaves holes, which the overloads say.
        return cast("list[Handle[R]]", await self.insert_starts(list(starts), on_conflict, connection))

    @overload
    async def signal(
        self,
        target: int | str | bytes | Handle[Any],
        signal: Signal[None],
        *,
        dedup_key: str | None = None,
        connection: object = None,
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
    ) -> bool: ...
    async def signal(
        self,
        target: int | str | bytes | Handle[Any],
        signal: Signal[Any],
        payload: object = None,
        *,
        dedup_key: str | None = None,
        connection: object = None,
    ) -> bool:
        """Send a signal to an instance by id, or to the live holder of a unique key.

        Tells whether it was delivered now; False: one with this `dedup_key` had been delivered before.
        Raises `NoTarget` when the instance is unknown or has ended. `connection` as in `insert`: it is sent when you
        commit, and the instance's row is locked until then.
        """
        delivery = delivery_of(target, signal, payload, dedup_key)
        if connection is not None:
            return was_delivered(await self.guest.signal(connection, delivery), target, signal)
        verdict, woken = await self._deliver.one(delivery)
        delivered = was_delivered(verdict, target, signal)
        if woken is not None:
            self.wake.wake(woken)
        return delivered

    async def cancel(
        self,
        target: int | str | bytes | Handle[Any],
        *,
        reason: str = "cancelled",
        cascade: bool = True,
        connection: object = None,
    ) -> Cancellation:
        """Canceller an instance by id, or the live holder of a unique key; with `cascade` all its descendants too.

        What waits ends at once. What executes is stopped by its worker, which runs `on_cancel`; a `def` step cannot be
        stopped, and ends as cancelled when it returns. A step that has ended the instance first wins. Tells what was
        done, which is nothing for an instance that had ended. Raises `NotFound`. `connection` as in `insert`: it is
        cancelled when you commit, its row and its parent's are locked until then, and its descendants follow
        afterwards, by the workers, uncounted.
        """
        words = reason_of(reason)
        instance, key = address(target)
        if connection is not None:
            found = await self.guest.cancel(connection, instance, key, words, cascade=cascade)
            return cancellation_of(found, target)
        self._opened()
        found, ended, asked = await self._cancel.one(instance, key, words, cascade=cascade)
        if found.id is not None and found.verdict == "ended":
            self.endings.ended(found.id, Status.CANCELLED, None, words)
        return cancellation_of(found, target, ended, asked)

    async def get(self, target: int | str | bytes | Handle[Any]) -> Instance:
        """An instance as it is now, by id or by the unique key it holds. Raises `NotFound`."""
        instance, key = address(target)
        found = await self.ask.run(self.calls.get(instance, key), "get", safe=True)
        if found is None:
            raise NotFound(f"{called(target)} is unknown")
        return found if self.seal is None else self.seal.instance(found)

    async def history(self, target: int | str | bytes | Handle[Any], *, last: int | None = None) -> list[Transition]:
        """The committed outcomes of an instance in their order, as far as its machine keeps them; or the `last` few."""
        instance, key = await self._named(target)
        found = await self.ask.run(self.journal.history(instance, key, check_last(last)), "history", safe=True)
        seal = self.seal
        return found if seal is None or instance is None else [seal.transition(one, instance) for one in found]

    async def activities(self, target: int | str | bytes | Handle[Any], *, last: int | None = None) -> list[Activity]:
        """The calls of `ctx.run` that have ended, in the order they began, of all steps; or the `last` few."""
        instance, key = await self._named(target)
        found = await self.ask.run(self.journal.activities(instance, key, check_last(last)), "activities", safe=True)
        seal = self.seal
        return found if seal is None or instance is None else [seal.activity(one, instance) for one in found]

    async def checkpoint(self, target: int | str | bytes | Handle[Any]) -> Checkpoint | None:
        """What the step that an instance is in has put by last with `ctx.checkpoint`; None: nothing."""
        instance, key = await self._named(target)
        found = await self.ask.run(self.journal.checkpoint_of(instance, key), "checkpoint", safe=True)
        if found is None or self.seal is None or instance is None:
            return found
        return self.seal.checkpoint(found, instance)

    async def progress(self, target: int | str | bytes | Handle[Any]) -> list[Progress]:
        """How far each step of an instance has come, by its own last word; the latest comes last."""
        instance, key = await self._named(target)
        found = await self.ask.run(self.journal.progress(instance, key), "progress", safe=True)
        seal = self.seal
        return found if seal is None or instance is None else [seal.progress(one, instance) for one in found]

    async def _named(self, target: int | str | bytes | Handle[Any]) -> tuple[int | None, bytes | None]:
        """An instance by id or key; with a codec by its id, which its payloads are sealed to."""
        instance, key = address(target)
        if self.seal is not None and key is not None:
            instance = await self.ask.run(self.calls.id_of_key(key), "get", safe=True)
        return instance, key

    def handle(self, instance: int, step: Startable[Any, R]) -> Handle[R]:
        """A handle on an instance known by its id; `step` is where it was started and tells the result's type."""
        from gen_durable.outcomes import step_of  # here, not above: one call, rarely made

        if address(instance)[0] is None:
            raise InputError("handle takes an instance's id; get it by its unique key with `get`")
        spec = step_of(step, "handle")
        return Handle(self, instance, spec.result_codec, spec.machine.name)

    async def wait(self, instance: int, codec: Codec[R], timeout: Duration | None) -> Ending[R]:
        """Wait for an instance to end; `Handle.wait` is the way in."""
        seconds = check_delay(timeout, "timeout") if timeout is not None else None
        self._opened()
        try:
            watched = await self.endings.of(instance, seconds)
        except ConnectionLost as error:
            raise DatabaseUnavailable(f"wait: the database is not reachable ({error})") from error
        if watched is None:
            return Pending(instance)
        match watched.status:
            case Status.DONE:
                return Finished(instance, codec.decode(self._result(watched)))
            case Status.FAILED:
                return Failed(instance, self._error(watched))
            case Status.CANCELLED:
                return Cancelled(instance, self._error(watched))
            case _:
                raise NotFound(f"instance {instance} is unknown; ended instances are deleted after their retention")

    def _result(self, watched: FinishedInstance) -> str:
        if watched.result is None:
            return "null"
        return watched.result if self.seal is None else self.seal.open(watched.result, watched.id, RESULT)

    def _error(self, watched: FinishedInstance) -> str:
        if self.seal is None:
            return watched.last_error or ""
        return self.seal.look_text(watched.last_error, watched.id, ERROR) or ""

    async def set_limit(self, name: str, policy: Policy) -> bool:
        """Make or change a limit, for all workers, from now on. Tells whether that changed anything.

        Steps that run go on; from the moment this returns nobody begins one above the new limit.
        """
        return await self._set_limit(name, policy, declared=False)

    async def declare_limit(self, name: str, policy: Policy) -> bool:
        """As `set_limit`, for code that says the same each time it starts: what was changed since stays."""
        return await self._set_limit(name, policy, declared=True)

    async def _set_limit(self, name: str, policy: Policy, *, declared: bool) -> bool:
        check_policy(check_name(name, "the name of a limit"), policy)
        call = self.calls.set_limit(name, policy, declared=declared)
        changed, woken = await self.ask.run(call, f"limit {name!r}", safe=True)
        self.wake.wake_all(woken)
        return changed

    async def remove_limit(self, name: str) -> bool:
        """Remove a limit: rows that name it run freely, new ones are refused. Tells whether it was there."""
        removed, woken = await self.ask.run(
            self.calls.remove_limit(check_name(name, "the name of a limit")), "remove_limit", safe=True
        )
        self.wake.wake_all(woken)
        return removed

    async def limits(self) -> list[LimitState]:
        """Every limit as it stands, partition by partition: how full it is, and how many rows wait."""
        return await self.ask.run(self.calls.limits(), "limits", safe=True)

    @property
    def target(self) -> Target:
        """Where connections of our own lead. Raises `ConfigError` when there is only a pool."""
        self._opened()
        return self._site.target

    async def insert_starts(
        self, starts: Sequence[Start[R]], on_conflict: OnConflict, connection: object = None
    ) -> list[Handle[R] | None]:
        """What `insert` and `insert_many` do, whatever `on_conflict` is; None where an instance was skipped."""
        if connection is None:
            ids = await self._insert.starts(starts, on_conflict)
        else:
            ids = await self.guest.insert(connection, starts, on_conflict)
        return self.handles(starts, ids)

    def handles(self, starts: Sequence[Start[R]], ids: Sequence[int | None]) -> list[Handle[R] | None]:
        """Handles on what was inserted; None where an instance was skipped."""
        return [
            None if instance is None else Handle(self, instance, start.step.result_codec, start.step.machine.name)
            for start, instance in zip(starts, ids, strict=True)
        ]

    def _ring(self, queue: str, count: int) -> None:
        self.wake.wake(queue, count)

    def _opened(self) -> Pool:
        if not self._open:
            raise ConfigError("this Durable is not open: use `async with Durable(...) as app:` or await app.open()")
        return self.pool

    def _asking(self) -> Pool:
        self._opened()
        return self._site.calls_pool
