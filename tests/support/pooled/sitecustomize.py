"""What the engine sends goes through the pooler, in every process of `make test POOLER=1` (tests/conftest.py).

A `Durable` on the server under test is made as one behind PgBouncer is (`pooler="transaction"`, LISTEN by the direct
DSN); commands and links are told nothing, and find the pooler by themselves. What tests ask past the engine goes to the
server directly, and so does every DSN of another role or server, and tests that are marked `direct`.
"""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

DIRECT = os.environ.get("GEN_DURABLE_TEST_DSN", "")
ASIDE = "keep_direct"


def place(dsn: str) -> tuple[object, ...]:
    """Server and role of a DSN; nothing of one that cannot be read."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return ()
    query = parse_qs(parts.query)
    return parts.netloc, query.get("host"), query.get("user")


def redirected(dsn: str) -> str:
    """The same database through the pooler, if it is on the server under test."""
    pooled = os.environ.get("GEN_DURABLE_TEST_POOLED")
    if not pooled or ASIDE in dsn or place(dsn) != place(DIRECT):
        return dsn
    there = urlsplit(pooled)
    return urlunsplit(there._replace(path=urlsplit(dsn).path or there.path))


def aside(dsn: str) -> str:
    """A DSN that is left as it is."""
    return f"{dsn}{'&' if '?' in dsn else '?'}application_name={ASIDE}"


def install() -> None:
    from gen_durable import client
    from gen_durable.pg import connector as connecting
    from gen_durable.pg import persistent_connection

    connected = connecting.connect_to_first_usable_host
    made = client.Durable.__init__

    async def connect(target: connecting.ConnectionTarget, *last: Any) -> connecting.HostConnection:
        return await connected(replace(target, dsn=redirected(target.dsn)), *last)

    @functools.wraps(made)
    def make(self: client.Durable, dsn: str | None = None, **options: Any) -> None:
        if isinstance(dsn, str) and redirected(dsn) != dsn:
            options = {"pooler": "transaction", "listen_dsn": dsn} | options
        if isinstance(options.get("listen_dsn"), str):
            options["listen_dsn"] = aside(options["listen_dsn"])
        made(self, dsn, **options)

    persistent_connection.connect_to_first_usable_host = connect
    client.Durable.__init__ = make


if os.environ.get("GEN_DURABLE_TEST_POOLED"):
    with contextlib.suppress(ImportError):  # a Python without the library
        install()
