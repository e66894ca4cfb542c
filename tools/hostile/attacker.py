"""`python -m tools.hostile.attacker DSN SCHEMA ROLE SEED [NAME ...]`: one hostile login, until its input ends.

It writes one JSON object in the end: how many calls, the errors by SQLSTATE, and what it has read of others.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter

import asyncpg

from tools.hostile.attacks import CANARY, LONGEST_HOLD, draw, text_of

CONNECTIONS = 2
# Ours; bad input; no right; a statement that takes too long; a deadlock among attackers.
EXPECTED = ("GD", "22023", "42501", "42939", "57014", "40P01")


async def attack(  # noqa: PLR0917  # all of one run
    dsn: str,
    schema: str,
    role: str,
    chance: random.Random,
    without: frozenset[str],
    seen: Counter[str],
    end: asyncio.Event,
) -> None:
    """Send statements on one connection, without a pause."""
    newest = 1000
    while not end.is_set():
        try:
            connection = await asyncpg.connect(dsn, timeout=10)
        except (OSError, asyncpg.PostgresError, TimeoutError):
            seen["no connection"] += 1
            await asyncio.sleep(0.1)
            continue
        try:
            await connection.execute("set statement_timeout = '5s'")
            while not end.is_set():
                drawn = draw(chance, role, without)
                seen["calls"] += 1
                try:
                    async with connection.transaction():
                        rows = await connection.fetch(text_of(drawn, schema, chance, newest))
                        if role != "reader" and any(CANARY in str(row) for row in rows):
                            seen[f"READ {drawn.name}"] += 1
                        if drawn.name == "allocate_ids" or not chance.randrange(50):
                            newest = await _newest(connection, schema) or newest
                        if drawn.held:
                            await asyncio.sleep(chance.random() * LONGEST_HOLD)
                except asyncpg.PostgresError as error:
                    seen[str(error.sqlstate)] += 1
                    if not str(error.sqlstate).startswith(EXPECTED):
                        seen[f"INTERNAL {drawn.name}: {error.sqlstate} {error.args[0]}"[:150]] += 1
                    if CANARY in str(error):
                        seen[f"READ {drawn.name}"] += 1
        except (OSError, asyncpg.InterfaceError, TimeoutError):
            seen["lost"] += 1
        finally:
            connection.terminate()


async def _newest(connection: asyncpg.Connection[asyncpg.Record], schema: str) -> int | None:
    """A number near the newest id: ids are drawn from one sequence."""
    try:
        async with connection.transaction():
            drawn: list[int] = await connection.fetchval(f'select "{schema}".allocate_ids(1)')
            return drawn[0]
    except asyncpg.PostgresError:
        return None


async def main(dsn: str, schema: str, role: str, seed: str, *without: str) -> None:
    seen: Counter[str] = Counter()
    end = asyncio.Event()
    tasks = [
        asyncio.create_task(attack(dsn, schema, role, random.Random(int(seed) + n), frozenset(without), seen, end))
        for n in range(CONNECTIONS)
    ]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    end.set()
    await asyncio.gather(*tasks)
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
