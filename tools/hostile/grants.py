"""The grants of the hostile logins: those that docs/howto/roles.md advises for logins that are not trusted."""

from __future__ import annotations

from urllib.parse import urlsplit

from gen_durable.pg.login_grants import Grant, InsertRole, Quota, grant_role
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.schema import Schema

ATTACKERS: tuple[InsertRole, ...] = ("producer", "client")
OWN_KEYS = Grant(partition_prefix="attacker:")


async def restrict_partition_keys(admin_dsn: str, schema: str, dsns: dict[str, str]) -> None:
    """Let the attackers that may insert use partition keys of their own only."""
    connection = PersistentConnection(ConnectionTarget(admin_dsn))
    try:
        for role in ATTACKERS:
            login = urlsplit(dsns[role]).username or ""
            await grant_role(connection, Schema(schema), role, login, grant=OWN_KEYS, quota=Quota())
    finally:
        await connection.close()
