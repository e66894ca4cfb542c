"""Encrypt stored payloads again with the current key, under load, batch by batch.

A run that was stopped is run again: payloads that are encrypted with the current key are left as they are. Instances
that execute are left out, and the run comes back to them: a step that ends in between has written its payloads itself.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gen_durable.core.services import Services
from gen_durable.encryption import PayloadEncryption
from gen_durable.errors import CodecUnavailable, ConfigError, DecodeError
from gen_durable.store.reencrypt import PAYLOAD_TABLES, PayloadReplacement, PayloadRow, PayloadStatementBuilder

PAUSE_SECONDS: Final = 0.5
MAX_PROBLEMS: Final = 20
TEXT_COLUMNS: Final = frozenset({"last_error", "last_traceback", "error", "traceback", "message"})


@dataclass(slots=True)
class ReencryptProgress:
    """The counts of a run so far. `busy` are instances that it has to come back to."""

    table: str = ""
    rows: int = 0
    written: int = 0
    in_clear: int = 0
    unreadable: int = 0
    problems: list[str] = field(default_factory=list[str])
    busy: set[int] = field(default_factory=set[int])


async def reencrypt(
    services: Services, *, batch: int, patience_seconds: float, encrypt_clear: bool
) -> AsyncGenerator[ReencryptProgress]:
    """Encrypt all payloads again. Yields the same object after each batch; `busy` is not empty if time was up.

    Payloads in clear are left as they are, unless `encrypt_clear`: to encrypt them is to vouch for them.
    """
    if services.encryption is None:
        raise ConfigError("reencrypt needs the codec: pass Durable(codec=...), or --codec MODULE:NAME")
    run = _ReencryptRun(services, services.encryption, batch, encrypt_clear=encrypt_clear)
    async for progress in run.reencrypt_tables(None):
        yield progress
    deadline = asyncio.get_running_loop().time() + patience_seconds
    while run.progress.busy and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(PAUSE_SECONDS)
        instances = sorted(run.progress.busy)
        run.progress.busy.clear()
        async for progress in run.reencrypt_tables(instances):
            yield progress


class _ReencryptRun:
    def __init__(self, services: Services, encryption: PayloadEncryption, batch: int, *, encrypt_clear: bool) -> None:
        self.progress = ReencryptProgress()
        self._services = services
        self._statements = PayloadStatementBuilder(services.schema)
        self._encryption = encryption
        self._batch = batch
        self._encrypt_clear = encrypt_clear

    async def reencrypt_tables(self, instances: list[int] | None) -> AsyncGenerator[ReencryptProgress]:
        for table in PAYLOAD_TABLES:
            self.progress.table = table
            after: list[str] | None = None
            while True:
                statement = self._statements.payloads_page(table, after, self._batch, instances)
                page = await self._services.statement_runner.run(statement, "reencrypt", may_run_twice=True)
                self.progress.rows += len(page) if instances is None else 0
                await self._reencrypt_page(table, page)
                yield self.progress
                if len(page) < self._batch:
                    break
                after = page[-1].key

    async def _reencrypt_page(self, table: str, page: Sequence[PayloadRow]) -> None:
        replacements: dict[str, list[PayloadReplacement]] = defaultdict(list)
        for row in page:
            if row.is_executing:
                self.progress.busy.add(row.instance)
                continue
            for payload in row.payloads:
                fresh = self._reencrypt_payload(payload.text, row.instance, payload.field, payload.column)
                if fresh is not None:
                    replacements[payload.column].append(PayloadReplacement(row.key, row.instance, payload.text, fresh))
        for column, several in replacements.items():
            statement = self._statements.replace_payloads(table, column, several)
            # A second try finds the new texts, and leaves them as they are.
            result = await self._services.statement_runner.run(statement, "reencrypt", may_run_twice=True)
            self.progress.written += result.written
            self.progress.busy.update(result.busy)

    def _reencrypt_payload(self, text: str, instance: int, field_: str, column: str) -> str | None:
        if not self._encryption.is_envelope(text):
            if column in TEXT_COLUMNS:
                return None  # a message of the engine
            if not self._encrypt_clear:
                self.progress.in_clear += 1
                return None
            return self._encryption.encrypt(text, instance, field_)
        try:
            return self._encryption.reencrypt_unless_current(text, instance, field_)
        except CodecUnavailable:
            raise  # a later run reads it
        except DecodeError as error:
            self.progress.unreadable += 1
            if len(self.progress.problems) < MAX_PROBLEMS:
                self.progress.problems.append(str(error))
            return None
