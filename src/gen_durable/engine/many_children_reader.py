"""Reads the children that are too many to come with their parent's claim, page by page."""

from __future__ import annotations

from typing import Final

from gen_durable.context import Child
from gen_durable.encryption import PayloadEncryption
from gen_durable.pg.pool import Pool
from gen_durable.store.statements import StatementBuilder

PAGE: Final = 1000


class ManyChildrenReader:
    """Reads the children that are too many to come with their parent's claim."""

    __slots__ = ("_encryption", "_pool", "_statements")

    def __init__(self, pool: Pool, statements: StatementBuilder, encryption: PayloadEncryption | None = None) -> None:
        self._pool = pool
        self._statements = statements
        self._encryption = encryption

    async def read_page(self, parent: int, after: int) -> list[Child]:
        """The page of children whose ids follow `after`."""
        children = await self._pool.run_idempotent(self._statements.children_page(parent, after, PAGE))
        return children if self._encryption is None else list(self._encryption.decrypt_children(children))
