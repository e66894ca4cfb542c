"""Random filters and cursors into list and count; random payloads under a worker, with and without a codec."""

from __future__ import annotations

import contextlib
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.security.test_codec import aes
from tests.support.canaries import CANARY, Secret, Vault, Waiter, echo, leaf
from tests.support.engine import BRIEF, Opening
from tests.support.fuzz_values import INTEGERS, TEXTS, Values
from tests.support.length import short_or_long

from gen_durable import Finished
from gen_durable.errors import DatabaseRefused, GenDurableError, InputError

pytestmark = pytest.mark.scaled
ROUNDS = short_or_long(150, 1500)
FILTERS = (
    *("status", "machine", "version", "step", "queue", "partition_key", "parent", "unique_key", "inserted_after"),
    *("inserted_before", "updated_after", "finished_before", "metadata", "due", "blocked", "error", "unknown"),
)
ENVELOPES = (
    *('"encrypted:1:"', '"encrypted:1:AAAA"', '"encrypted:2:AAAA"', '"encrypted:"', '"encrypted:1:!!"', "null", "[]"),
    *('{"text": 1}', '{"count": "x"}', '"' + "x" * 10_000 + '"', "[" * 60 + "]" * 60, '{"": null}', "-0.0"),
)


def value(chance: random.Random) -> Any:
    return chance.choice(
        (
            *(chance.choice(TEXTS), chance.choice(INTEGERS), 1.5, None, True, b"\x00\xff", [], {}, "failed", ["done"]),
            *(
                {"a": chance.choice(TEXTS)},
                datetime.max.replace(tzinfo=UTC),
                datetime.min.replace(tzinfo=UTC),
                float("nan"),
                object(),
            ),
        )
    )


async def test_filters_and_cursors(engine: Opening) -> None:
    """A filter that cannot be is an error of ours, whatever it has in it, and never one of the server."""
    chance = random.Random(1)
    async with engine() as e:
        one = await e.app.insert(echo, Secret("x"), unique_key="k", metadata={"a": 1})
        refused, answered = [], 0
        for _ in range(ROUNDS):
            filters: Any = {name: value(chance) for name in chance.sample(FILTERS, chance.choice((0, 1, 1, 2, 3)))}
            after: Any = chance.choice((None, None, "i1", "ifffffffffffffff", "i", "", "x", 3, "i" + "f" * 17, "i-1"))
            limit: Any = chance.choice((1, 50, 1000, 0, -1, 10**9, "x", None))
            for call in (e.app.list(**filters, after=after, limit=limit), e.app.count(**filters)):
                try:
                    await call
                    answered += 1
                except DatabaseRefused as error:
                    refused.append((filters, after, limit, error))
                except InputError:
                    pass
        assert refused == []
        assert answered > ROUNDS / 10
        assert [found.id for found in await e.app.list(unique_key="k")] == [one.id]


@pytest.mark.parametrize("has_codec", [False, True])
async def test_envelopes(engine: Opening, has_codec: bool) -> None:
    """Rows with states, signals, results, checkpoints and activities of random JSON: the worker runs the good ones."""
    values = Values(random.Random(2), [1, 2, 3])
    codec = aes() if has_codec else None
    async with engine(codec=codec) as e:
        total = short_or_long(40, 300)
        payloads = [*ENVELOPES, *(values.document(3) for _ in range(total))]
        for number, text in enumerate(payloads):
            machine, step = (("Waiter", "wait"), ("Vault", "work"), ("echo", "run"))[number % 3]
            await e.rows.fetch("select @.insert($1, $2, $3::text::jsonb)", machine, step, text)
        waiting = await e.app.insert(Waiter.wait, Secret("x"))
        vault = await e.app.insert(Vault.start, Secret(CANARY))
        async with e.worker(Waiter(), Vault(), echo, leaf, queues={"default": 8}, **BRIEF):
            await e.rows.until(waiting, status="awaiting_signal")
            for text in payloads:
                await e.rows.fetch("select @.signal($1::bigint, 'told', $2::text::jsonb)", waiting.id, text)
            await e.rows.until(vault, status="awaiting_signal")
            await e.rows.fetch("update @.checkpoints set value = '[7]', format = 77")
            last = await e.app.insert(echo, Secret("last"))
            assert await e.end(last) == Finished(last.id, Secret("last"))
        for row in await e.rows.fetch("select id from @.instances"):
            for read in (e.app.get, e.app.history, e.app.activities, e.app.checkpoint, e.app.progress):
                with contextlib.suppress(GenDurableError):
                    await read(row[0])
