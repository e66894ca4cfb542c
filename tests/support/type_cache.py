"""Spare test connections a query of asyncpg.

asyncpg asks the catalog about each array type once per connection, 8 ms each time: a third of what the server does in
most tests, which open a dozen connections each. The types of pg_catalog are the same in every database of a server
version, so here the answers are kept for the whole process.
"""

from __future__ import annotations

from typing import Any

from asyncpg.connection import Connection

FIRST_USER_OID = 16384

_introspect: Any = Connection._introspect_types
_answers: dict[tuple[int, frozenset[int]], Any] = {}


async def _introspect_once(self: Any, typeoids: Any, timeout: Any) -> Any:
    key = (self.get_server_version().major, frozenset(typeoids))
    if key in _answers:
        return _answers[key]
    answer = await _introspect(self, typeoids, timeout)
    if all(oid < FIRST_USER_OID for oid in typeoids):
        _answers[key] = answer
    return answer


def install() -> None:
    """Keep what asyncpg learns about the types of pg_catalog."""
    Connection._introspect_types = _introspect_once
