"""SIGKILL before and after every commit of a step with two activities, a checkpoint and a row of the user's.

A proxy holds the statement back, or its answer: so the process dies when the server has not done it yet, or when it has
and the process does not know. Another worker finishes. What was finished is not done again, the user's row is there
once, and the history has no gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.programs import commits

from gen_durable import Durable, Finished, Worker

SOON = timedelta(seconds=30)
WORDS = ("act-one", "mark-one", "act-two", "go-close", "COMMIT;", "all-done")
"""In their order. All are commits but one: the outcome, go-close, is a statement in the transaction of COMMIT.

The semicolon tells it from READ COMMITTED.
"""
Proxied = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.fixture
def survivor(tmp_path: Path, schema: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the worker that goes on, in this process, leaves its effects."""
    monkeypatch.setenv("EFFECTS", str(tmp_path / "survivor"))
    monkeypatch.setenv("SCHEMA", schema)
    (tmp_path / "survivor").touch()
    return tmp_path / "survivor"


async def kill_at(
    dsn: str, schema: str, spawn: Callable[..., Any], proxied: Proxied, word: str, *, committed: bool
) -> tuple[list[str], int]:
    """Start the work, kill its process around the commit of this word, let another finish; returns what it had done."""
    async with proxied() as proxy, Durable(dsn, schema=schema) as app:
        victim = spawn("commits", DSN=proxy.dsn)
        await victim.until("ready")
        if committed:
            proxy.answerless = word.encode()
        else:
            proxy.stopping = word.encode()
        handle = await app.insert(commits.Order.pay, 7)
        async with asyncio.timeout(20):
            await proxy.stalled.wait()  # with the answer in its hands, if it is the answer that it holds back
        victim.kill()
        proxy.cut_all()
        async with Worker(app, machines=[commits.Order()], **commits.BRIEF):
            assert await handle.wait(SOON) == Finished(handle.id, "all-done")
        return [line.partition(" ")[2] for line in victim.lines()], handle.id


@pytest.mark.parametrize(
    "committed", [pytest.param(False, id="before"), pytest.param(True, id="after", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("word", WORDS)
async def test_kill_9_at_every_commit(  # noqa: PLR0917  # fixtures
    dsn: str, schema: str, spawn: Callable[..., Any], proxied: Proxied, survivor: Path, word: str, committed: bool
) -> None:
    """What is committed counts, and only that."""
    look = await asyncpg.connect(dsn)
    try:
        await look.execute(f'create table "{schema}".book (text text not null)')
        effects, number = await kill_at(dsn, schema, spawn, proxied, word, committed=committed)
        effects += [line.partition(" ")[2] for line in survivor.read_text().splitlines()]
        books = [row[0] for row in await look.fetch(f'select text from "{schema}".book')]
    finally:
        await look.close()

    # An activity whose result was not committed was not finished: it is called again. No other is.
    def kept(name: str) -> bool:
        return WORDS.index(name) < WORDS.index(word) or (name == word and committed)

    lost = None if committed else word
    assert effects.count("charged") == (2 if lost == "act-one" else 1)
    assert effects.count("mailed") == (2 if lost == "act-two" else 1)
    assert effects.count("closed") == (2 if lost == "all-done" else 1)
    found = [line.removeprefix("found ") for line in effects if line.startswith("found ")]
    if word == "act-one" or kept("COMMIT;"):
        assert found == ["None"]
    else:
        assert found == ["None", "mark-one" if kept("mark-one") else "None"]

    assert books == ["7"]
    async with Durable(dsn, schema=schema) as app:
        history = await app.history(number)
        assert [(t.seq, t.step, t.outcome) for t in history] == [(1, "pay", "Next"), (2, "close", "Done")]
        assert [(a.name, a.ok) for a in await app.activities(number)] == [("act-one", True), ("act-two", True)]
        row = await app.get(number)
        assert (row.seq, row.crashes) == (2, 0)
