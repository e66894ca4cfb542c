"""Services: the objects that the client operations, the worker and the tools of one `Durable` share.

`Durable` holds one; every other part reaches it with `services_of(app)`, so that `Durable` itself shows only what users
call. Pools, notifier, completions and installation keys exist while the `Durable` is open.
"""

from __future__ import annotations

from typing import Protocol

from gen_durable.core.caller_transaction_watcher import CallerTransactionWatcher
from gen_durable.core.completion_watcher import CompletionWatcher
from gen_durable.core.hand_off import HandOffTarget
from gen_durable.core.insert_runner import InsertRunner
from gen_durable.core.notifier import Notifier
from gen_durable.core.signal_runner import SignalRunner
from gen_durable.core.statement_runner import StatementRunner
from gen_durable.durable_database import DurableDatabase
from gen_durable.encryption import PayloadEncryption
from gen_durable.errors import ConfigError
from gen_durable.pg.persistent_connection import ConnectionTarget
from gen_durable.pg.pool import Pool
from gen_durable.pg.write_access import write_access_statement
from gen_durable.store.inbox import InboxStatementBuilder
from gen_durable.store.instance_admin import InstanceAdminStatementBuilder
from gen_durable.store.journal import JournalStatementBuilder
from gen_durable.store.retention import RetentionStatementBuilder
from gen_durable.store.schema import Schema
from gen_durable.store.start_or_update import StartOrUpdateStatementBuilder
from gen_durable.store.statements import StatementBuilder
from gen_durable.telemetry import Events


class Services:
    """Everything that a `Durable` is made of.

    `statement_runner` runs what users call, through the pool that the user passed, if any. `engine_statement_runner`
    and `pool` are for workers: they never use connections that user code may hold.
    """

    __slots__ = (
        "_completions",
        "_database",
        "_installation_keys",
        "_notifier",
        "admin_statements",
        "caller_transaction_watcher",
        "encryption",
        "engine_statement_runner",
        "events",
        "inbox_statements",
        "insert_runner",
        "is_open",
        "journal_statements",
        "retention_statements",
        "schema",
        "signal_runner",
        "start_or_update_statements",
        "statement_runner",
        "statements",
    )

    def __init__(self, database: DurableDatabase, encryption: PayloadEncryption | None) -> None:
        self._database = database
        self.schema: Schema = database.schema
        self.statements = StatementBuilder(self.schema)
        self.journal_statements = JournalStatementBuilder(self.schema)
        self.admin_statements = InstanceAdminStatementBuilder(self.schema)
        self.start_or_update_statements = StartOrUpdateStatementBuilder(self.schema)
        self.retention_statements = RetentionStatementBuilder(self.schema)
        self.inbox_statements = InboxStatementBuilder(self.schema)
        self.events = Events()
        self.encryption = encryption
        self.statement_runner = StatementRunner(self._get_client_pool, self.schema.name)
        self.engine_statement_runner = StatementRunner(self._get_pool, self.schema.name)
        self._make_runners()
        self.caller_transaction_watcher: CallerTransactionWatcher | None = (
            None  # None unless open: other threads look at it
        )
        self.is_open = False

    @property
    def pool(self) -> Pool:
        """The connections of the library itself; the user's pool if there is no DSN."""
        return self._get_pool()

    @property
    def connection_target(self) -> ConnectionTarget:
        """Where the library's own connections lead. Raises `ConfigError` if there is only a pool."""
        self.check_open()
        return self._database.connection_target

    @property
    def notifier(self) -> Notifier:
        """Wakes workers, here and in other processes."""
        self.check_open()
        return self._notifier

    @property
    def completion_watcher(self) -> CompletionWatcher:
        """Waits for instances to end."""
        self.check_open()
        return self._completions

    @property
    def codec_identity(self) -> str:
        """Identifies the codec in fingerprints; "" without a codec."""
        return "" if self.encryption is None else self.encryption.codec_identity

    @property
    def installation_id(self) -> str:
        """The id of the database, which idempotency keys contain."""
        self.check_open()
        return self._installation_keys.idempotency_prefix

    @property
    def handle_token_key(self) -> bytes:
        """The secret that makes and verifies handle tokens."""
        self.check_open()
        return self._installation_keys.handle_token_key

    def check_open(self) -> None:
        """Raise `ConfigError` if the `Durable` is not open."""
        if not self.is_open:
            raise ConfigError("this Durable is not open: use `async with Durable(...) as app:` or await app.open()")

    async def check_write_access(self) -> None:
        """Raise `DatabaseUnavailable` or `DatabaseRefused` if a worker cannot write here."""
        statement = write_access_statement(self.schema)
        (await self.engine_statement_runner.run(statement, "start", may_run_twice=True)).check_worker_can_write(
            self.schema
        )

    @property
    def is_embedded_by_default(self) -> bool:
        """Whether opening starts the embedded server, because neither the code nor DATABASE_URL names a database."""
        return not self.is_open and self._database.is_embedded_by_default

    async def open_if_closed(self) -> bool:
        """Open unless open already; returns whether this call opened it."""
        if self.is_open:
            return False
        await self.open()
        return True

    async def open(self) -> None:
        """Connect, and check that the schema is there."""
        if self.is_open:
            raise ConfigError("this Durable is open already")
        database = self._database
        await database.open_and_prepare_schema()
        self._installation_keys = database.installation_keys
        self._notifier = Notifier(database.pool, self.statements, self.engine_statement_runner, database.listen_target)
        self._completions = CompletionWatcher(database.pool, self.statements)
        self._make_runners()  # after a fork those before have calls of the parent
        self.caller_transaction_watcher = CallerTransactionWatcher(database.pool, self._notifier, self.events)
        self.is_open = True

    async def close(self) -> None:
        """Close the library's own connections."""
        if not self.is_open:
            return
        await self.insert_runner.close()
        await self.signal_runner.close()
        self.is_open = False
        watcher, self.caller_transaction_watcher = self.caller_transaction_watcher, None
        if watcher is not None:
            await watcher.close()
        await self._completions.stop()
        await self._notifier.close()
        await self._database.close()

    def abandon_after_fork(self) -> tuple[object, ...]:
        """After a fork: count as closed, without a word on the connections, which are the parent's.

        Returns objects that the caller must keep: collecting them would touch the parent's sockets.
        """
        self.is_open = False
        watcher, self.caller_transaction_watcher = self.caller_transaction_watcher, None
        return watcher, self._completions, self._notifier, self._database.pool

    def _make_runners(self) -> None:
        self.insert_runner = InsertRunner(
            self.statements, self.statement_runner, self.encryption, self._find_hand_off_target
        )
        self.signal_runner = SignalRunner(self.statements, self.statement_runner)

    def _find_hand_off_target(self) -> HandOffTarget | None:
        """None without a worker, and if clients use a pool of the user: its login may differ from the worker's."""
        if not self.is_open or not self._notifier.has_workers:
            return None
        return self._notifier if self._database.client_pool is self._database.pool else None

    def _get_pool(self) -> Pool:
        self.check_open()
        return self._database.pool

    def _get_client_pool(self) -> Pool:
        self.check_open()
        return self._database.client_pool


class HasServices(Protocol):
    """A `Durable`."""

    _services: Services


def services_of(app: HasServices) -> Services:
    """The services of a `Durable`: for workers, `gen_durable.testing`, the command line and tools."""
    return app._services  # pyright: ignore[reportPrivateUsage]  # the one way in; `Durable` keeps it out of sight
