"""Loads the parts of a claim that are too large to come with the pick: its inbox, children and activities.

A pick is one statement for all queues of a worker, so what comes with it is small. Large parts are loaded here, before
the step, in pages: the event loop decodes one page at a time, and runs other work in between. One claim is loaded at a
time, and none while the claims that were loaded and still run hold MAX_BYTES. Guarded by
tests/worker/test_large_claims.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from gen_durable.context import Child
from gen_durable.engine.journal_action_runner import JournalActionRunner
from gen_durable.errors import DecodeError, GenDurableError
from gen_durable.pg.error_classifier import ConnectionLost, SqlError, describe_for_log
from gen_durable.pg.pool import Pool
from gen_durable.signals import Received
from gen_durable.store.inbox import InboxStatementBuilder
from gen_durable.store.journal import JournalStatementBuilder
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Claim
from gen_durable.stored_exceptions import describe_error
from gen_durable.validation import MAX_CLAIM_PART

MAX_BYTES: Final = 192_000_000
MAX_LOADED_CHILDREN: Final = 10_000
MAX_SIGNALS: Final = 20_000  # awaited ones, and as many others
MAX_UNAWAITED: Final = 8_000_000  # bytes of signals that the step does not await
PAGE: Final = 1000  # children


class UnreadableClaim(Exception):
    """A part of a claim cannot be read."""


class ClaimPartLoader:
    """Loads the large parts of one worker's claims, and bounds their bytes."""

    def __init__(
        self,
        pool: Pool,
        statements: StatementBuilder,
        journal_statements: JournalStatementBuilder,
        journal: JournalActionRunner,
    ) -> None:
        self._pool = pool
        self._statements = statements
        self._signal_statements = InboxStatementBuilder(statements.schema)
        self._journal_statements = journal_statements
        self._journal = journal
        self._loading = asyncio.Lock()
        self._released = asyncio.Event()
        self._bytes = 0  # of the claims that were loaded and still run

    @asynccontextmanager
    async def load_parts_within_bound(self, claim: Claim) -> AsyncGenerator[None]:
        """Complete a claim, and count its bytes until the end of the block. Raises `UnreadableClaim`."""
        async with self._loading:
            while self._bytes > MAX_BYTES:
                self._released.clear()
                await self._released.wait()
            try:
                size = await self._load_parts(claim)
            except (ConnectionLost, SqlError) as error:
                reason = f"its signals, children or activities cannot be read ({describe_for_log(error)})"
                raise UnreadableClaim(reason) from error
            self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size
            self._released.set()

    async def _load_parts(self, claim: Claim) -> int:
        """Returns the bytes that were loaded, as the methods for each part do."""
        size = 0
        if claim.has_unread_inbox:
            size += await self._load_inbox(claim)
        if claim.has_unread_children:
            size += await self._load_children(claim)
        if claim.has_unread_activities:
            size += await self._load_activities(claim)
        return size

    async def _load_inbox(self, claim: Claim) -> int:
        """Awaited signals first, then the oldest of the others; those beyond the bounds are left for a later claim."""
        awaits = claim.awaits or []
        awaited = await self._read_signals(claim, MAX_CLAIM_PART, names=awaits) if awaits else []
        others = await self._read_signals(claim, MAX_UNAWAITED, without=awaits)
        claim.inbox = tuple(sorted(awaited + others, key=lambda received: received.id))
        return sum(len(received.payload) for received in claim.inbox)

    async def _read_signals(
        self, claim: Claim, max_bytes: int, *, names: Sequence[str] | None = None, without: Sequence[str] = ()
    ) -> list[Received]:
        """At least one, however large, if there is any."""
        found: list[Received] = []
        size = after = 0
        while page := await self._pool.run_idempotent(
            self._signal_statements.inbox_page(claim.id, after, names, without)
        ):
            for received in page:
                if found and (size + len(received.payload) > max_bytes or len(found) >= MAX_SIGNALS):
                    return found
                size += len(received.payload)
                found.append(received)
            after = page[-1].id
        return found

    async def _load_children(self, claim: Claim) -> int:
        """Children beyond the bounds are left out altogether: the step reads them page by page."""
        children: list[Child] = []
        size = after = 0
        while page := await self._pool.run_idempotent(self._statements.children_page(claim.id, after, PAGE)):
            children += page
            size += sum(len(child.raw_state) + len(child.raw_result or b"") for child in page)
            if len(children) > MAX_LOADED_CHILDREN or size > MAX_CLAIM_PART:
                return 0
            after = page[-1].id
        claim.children = tuple(children)
        return size

    async def _load_activities(self, claim: Claim) -> int:
        try:
            journal = self._journal.get_or_create_step_journal(claim, claim.seq)
        except (GenDurableError, RecursionError):  # RecursionError: a checkpoint that is nested too deep
            return 0  # the executor meets the same error, and puts the row back with the reason
        after = 0
        while page := await self._pool.run_idempotent(
            self._journal_statements.activities_page(claim.id, claim.visit, after)
        ):
            try:
                after = journal.load_activities_page(page)
            except DecodeError as error:  # as the executor does with the activities that come with a claim
                raise UnreadableClaim(describe_error(error)) from error
            if journal.size > 2 * MAX_CLAIM_PART:
                break  # no worker records as much: the text of jsonb is at most twice as long
        return journal.size
