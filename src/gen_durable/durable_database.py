"""`DurableDatabase`: finds the database of a `Durable`, checks or migrates its schema, and owns the pools.

The database comes from a DSN, from DATABASE_URL, from the embedded server, or from a pool of the caller. A caller's
pool runs the client's calls only, and is never closed here: user code can hold its connections, so a worker, which
needs connections for heartbeats and commits at any time, must have a DSN.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from gen_durable.errors import ConfigError, DatabaseUnavailable
from gen_durable.escaping_loggers import get_escaping_logger
from gen_durable.pg.dsn import check_required_tls, find_tls_weakness, is_tls_required
from gen_durable.pg.error_classifier import ConnectionLost, SqlError
from gen_durable.pg.migrate import check_schema_version, migrate
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.pg.pool import CallerPool, DriverPool, OwnPool, Pool
from gen_durable.pg.session_settings import read_role_settings_statement
from gen_durable.pg.sqlstate_errors import to_library_error
from gen_durable.store.installation_keys import read_installation_keys
from gen_durable.store.schema import Schema

if TYPE_CHECKING:
    from gen_durable.embedded import EmbeddedServer

log = get_escaping_logger("gen_durable")


class DurableDatabase:
    """The database of one `Durable`.

    After `open`: `pool` (the library's own connections), `client_pool` (for the client's calls), `installation_keys`.
    """

    __slots__ = (
        "_caller_pool",
        "_directory",
        "_dsn",
        "_embedded",
        "_listen_dsn",
        "_migrate",
        "_pooler",
        "_requires_tls",
        "_roles",
        "_size",
        "_target",
        "client_pool",
        "installation_keys",
        "pool",
        "schema",
    )

    def __init__(
        self,
        dsn: str | None,
        pool: DriverPool | None,
        schema: Schema,
        *,
        pooler: str | None,
        listen_dsn: str | None,
        pool_size: int,
        migrate: bool | None,
        roles: str | None,
        embedded_directory: str | Path | None,
        require_tls: str | None = None,
    ) -> None:
        if pooler not in (None, "transaction"):
            raise ConfigError(f"pooler must be None or 'transaction', got {pooler!r}")
        if not isinstance(pool_size, int) or pool_size < 1:
            raise ConfigError(f"pool_size must be 1 or more, got {pool_size!r}")
        if roles is not None and not migrate:
            raise ConfigError("a migration creates the roles: pass migrate=True with roles=")
        for name, given in (("dsn", dsn), ("listen_dsn", listen_dsn)):
            if given is not None:
                _require_postgresql_dsn(name, given)
        if pool is not None and dsn is None:
            dsn_options = {
                "pooler": pooler,
                "listen_dsn": listen_dsn,
                "migrate": migrate,
                "embedded_directory": embedded_directory,
            }
            for name in [name for name, value in dsn_options.items() if value]:
                raise ConfigError(f"{name} needs a dsn: pass one beside pool=, or leave {name} out")
        if pool is not None and require_tls is not None:
            raise ConfigError("require_tls checks DSNs, not a pool of yours: leave it out, and give the pool ssl=")
        self.schema = schema
        self._requires_tls = is_tls_required(require_tls, os.environ)
        self._dsn = dsn
        self._caller_pool = None if pool is None else CallerPool(pool)
        self._pooler = pooler
        self._listen_dsn = listen_dsn
        self._size = pool_size
        self._migrate = migrate
        self._roles = roles
        self._directory = Path(embedded_directory) if embedded_directory is not None else None
        self._embedded: EmbeddedServer | None = None
        self._target: ConnectionTarget | None = None

    @property
    def connection_target(self) -> ConnectionTarget:
        """Where the library's own connections lead. Raises `ConfigError` if there is only a pool."""
        if self._target is None:
            raise ConfigError(
                "this Durable has only a pool of yours, which runs its calls. A worker needs connections of its own, "
                "for heartbeats, commits and LISTEN: pass a dsn too, Durable(dsn, pool=pool)"
            )
        return self._target

    @property
    def listen_target(self) -> ConnectionTarget | None:
        """Where to LISTEN. None through a transaction pooler, where notifications do not arrive, and without a DSN."""
        if self._listen_dsn is not None:
            return ConnectionTarget(self._listen_dsn, pooled=False, requires_tls=self._requires_tls)
        return None if self._target is None or self._target.pooled else self._target

    @property
    def is_embedded_by_default(self) -> bool:
        """Whether `open` starts the embedded server although no directory was named for it."""
        is_named = self._dsn or self._caller_pool or self._directory or os.environ.get("DATABASE_URL")
        return not is_named

    async def open_and_prepare_schema(self) -> None:
        """Find the database, then migrate or check its schema."""
        try:
            if self._caller_pool is None or self._dsn is not None:
                pooled = True if self._pooler is not None else None
                own_dsn = await self._find_dsn_or_start_embedded_server()
                found = ConnectionTarget(own_dsn, pooled=pooled, requires_tls=self._requires_tls)
                self._refuse_or_warn_about_weak_tls("the DSN", found.dsn)
                if self._listen_dsn is not None:
                    self._refuse_or_warn_about_weak_tls("listen_dsn", self._listen_dsn)
                self._target = await self._prepare_schema_and_detect_pooler(found)
                self.pool: Pool = OwnPool(self._target, self._size)
            if self._caller_pool is not None:
                await self._check_and_adopt_caller_pool(self._caller_pool)
            self.client_pool: Pool = self._caller_pool or self.pool
        except SqlError as error:
            await self._release_embedded_server()
            raise to_library_error(error, "open", self.schema.name) from None
        except ConnectionLost as error:
            await self._release_embedded_server()
            raise DatabaseUnavailable(error.problem) from error
        except BaseException:
            await self._release_embedded_server()
            raise

    async def close(self) -> None:
        """Close the library's own connections."""
        await self.pool.close()
        await asyncio.sleep(0)  # aborted connections close their sockets in the next iteration of the event loop
        await self._release_embedded_server()

    def _refuse_or_warn_about_weak_tls(self, name: str, dsn: str) -> None:
        """Refuse weak TLS if it is not allowed, else warn about it."""
        if self._requires_tls:
            check_required_tls(name, dsn, os.environ)
        elif (weak := find_tls_weakness(dsn, os.environ)) is not None:
            log.warning("%s", weak)

    async def _prepare_schema_and_detect_pooler(self, target: ConnectionTarget) -> ConnectionTarget:
        """Migrate or check the schema. Returns the target, which knows by then whether it is a pooler."""
        connection = PersistentConnection(target)
        try:
            await self._migrate_or_check_schema(connection)
            self.installation_keys = await connection.run(read_installation_keys(self.schema))
            if connection.target.pooled:
                (await connection.run(read_role_settings_statement())).check_engine_can_work()
        finally:
            await connection.close()
        self._warn_about_undeclared_pooler(connection.target)
        return connection.target

    async def _migrate_or_check_schema(self, connection: PersistentConnection) -> None:
        if self._migrate or (self._migrate is None and self._embedded is not None):
            await migrate(connection, self.schema, roles=self._roles)
        else:
            await check_schema_version(connection, self.schema)

    def _warn_about_undeclared_pooler(self, target: ConnectionTarget) -> None:
        if target.pooled and self._pooler is None:
            log.warning(
                "the DSN leads through a pooler, so statements are not prepared%s; say so with pooler='transaction'",
                "" if self._listen_dsn is not None else " and workers poll: listen_dsn= takes a direct DSN",
            )

    async def _check_and_adopt_caller_pool(self, caller_pool: CallerPool) -> None:
        """Check the schema behind the caller's pool. Without a DSN, the pool also runs the library's own statements."""
        await check_schema_version(caller_pool, self.schema)
        installation_keys = await caller_pool.run(read_installation_keys(self.schema))
        if self._target is None:
            self.pool = caller_pool
            self.installation_keys = installation_keys
        elif installation_keys != self.installation_keys:
            raise ConfigError("pool= and dsn lead to different databases")

    async def _find_dsn_or_start_embedded_server(self) -> str:
        if self._dsn is not None:
            return self._dsn
        if dsn := os.environ.get("DATABASE_URL"):
            return _require_postgresql_dsn("DATABASE_URL", dsn)
        from gen_durable.embedded import start

        self._embedded = await asyncio.to_thread(start, self._directory)
        return self._embedded.dsn

    async def _release_embedded_server(self) -> None:
        server, self._embedded = self._embedded, None
        if server is not None:
            from gen_durable.embedded import release

            await asyncio.to_thread(release, server)


def _require_postgresql_dsn(name: str, dsn: str) -> str:
    if not isinstance(dsn, str) or not dsn.startswith(("postgres://", "postgresql://")):
        raise ConfigError(f"{name} must be a str that begins with postgresql://")
    return dsn
