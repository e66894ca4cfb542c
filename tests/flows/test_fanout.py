"""Outcomes that start more children than one statement takes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from gen_durable import (
    Context,
    Done,
    Durable,
    Fail,
    Finished,
    Handle,
    Machine,
    Outcome,
    ScheduleChildren,
    Start,
    Worker,
    job,
    step,
)
from gen_durable.core.services import services_of
from gen_durable.engine import outcome_and_children_flusher, outcome_encoder
from gen_durable.engine.committer import CommitResult, Committer
from gen_durable.engine.slow_commit_connections import SlowCommitConnections
from gen_durable.errors import TooLarge
from gen_durable.pg.persistent_connection import PersistentConnection
from gen_durable.store.statements import StatementBuilder
from gen_durable.store.types import Claim, Commit, FlushResult, ManyChildren

Proxied = Callable[[], AbstractAsyncContextManager[Any]]
QUEUES = {"default": 200}


@job
async def leaf(n: int) -> int:
    """A child that ends at once."""
    return n


class Tree(Machine):
    """As many children as its state says, drawn from a generator."""

    drawn_in: str = ""
    made: Callable[[int], Iterator[Start[Any]]] = staticmethod(lambda count: (Start(leaf, n) for n in range(count)))

    def leaves(self, count: int) -> Iterator[Start[Any]]:
        self.drawn_in = threading.current_thread().name
        yield from self.made(count)

    @step
    async def spread(self, count: int, ctx: Context) -> Outcome[list[int]]:
        return ScheduleChildren(self.leaves(count), then=self.join, state=count)

    @step
    def spread_in_thread(self, count: int, ctx: Context) -> Outcome[list[int]]:
        return ScheduleChildren(self.leaves(count), then=self.join, state=count)

    @step
    async def join(self, count: int, ctx: Context) -> Outcome[list[int]]:
        results = [result async for result in ctx.stream_results(leaf)]
        if count > 10_000:
            with pytest.raises(TooLarge, match=r"async for child in ctx\.stream_children\(\)"):
                _ = ctx.children
        else:
            assert results == ctx.results(leaf)
            assert [child.id async for child in ctx.stream_children()] == [child.id for child in ctx.children]
        return Done(results)

    async def on_error(self, state: int, ctx: Context, error: Exception) -> Outcome[list[int]]:
        return Fail(error)


def making(made: Callable[[int], Iterator[Start[Any]]]) -> Tree:
    tree = Tree()
    tree.made = made  # type: ignore[method-assign]
    return tree


async def ended(handle: Handle[Any]) -> Any:
    return await handle.wait(timedelta(seconds=60))


CHILDREN = 'select count(*) from "{}".instances where parent_id is not null'


async def count_of(dsn: str, schema: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval(CHILDREN.format(schema)))
    finally:
        await connection.close()


@pytest.mark.parametrize("count", [999, 1000, 1001, 2000, 3500])
async def test_children_from_a_generator(dsn: str, schema: str, count: int) -> None:
    """Below, at and beyond what one statement takes, all are started, and read in the order they were listed."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Tree()], jobs=[leaf], queues=QUEUES):
        assert (await ended(await app.insert(Tree.spread, count))).result == list(range(count))


async def test_more_children_than_come_along_are_read_by_pages(dsn: str, schema: str) -> None:
    """Beyond 10,000 they are not loaded with the claim: `children` says so, and the streams have them all in order."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Tree()], jobs=[leaf], queues=QUEUES):
        assert (await ended(await app.insert(Tree.spread, 10_001))).result == list(range(10_001))


async def test_the_generator_of_a_step_in_a_thread_is_drawn_in_a_thread(dsn: str, schema: str) -> None:
    """It may block as the step may."""
    tree = Tree()
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[tree], jobs=[leaf], queues=QUEUES):
        assert (await ended(await app.insert(Tree.spread_in_thread, 2500))).result == list(range(2500))
        assert tree.drawn_in != threading.current_thread().name
        assert (await ended(await app.insert(Tree.spread, 2500))).result == list(range(2500))


async def test_keys_across_parts(dsn: str, schema: str) -> None:
    """Taken keys, by others or by an earlier part, make no child; ids follow the list, not the keys."""

    def keyed(count: int) -> Iterator[Start[Any]]:
        for n in range(count):
            yield Start(leaf, n, unique_key=f"key {(n * 7919) % 1500:05}" if n % 3 else None)

    tree = making(keyed)
    async with Durable(dsn, schema=schema) as app:
        await app.insert(leaf, 0, unique_key=f"key {7919 % 1500:05}", delay=timedelta(hours=1), queue="elsewhere")
        async with Worker(app, machines=[tree], jobs=[leaf], queues=QUEUES):
            results = (await ended(await app.insert(Tree.spread, 4000))).result
        keys = [None if n % 3 == 0 else n * 7919 % 1500 for n in range(4000)]
        expected = [n for n, key in enumerate(keys) if key is None or key not in keys[:n]]
        expected.remove(1)
        assert results == sorted(results)
        # Of several with one key in the same part any may win; the first part that has it does.
        assert len(results) == len(expected)
        assert {keys[n] for n in results} == {keys[n] for n in expected}


@pytest.mark.parametrize("entry", [Tree.spread, Tree.spread_in_thread])
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Start(leaf, object()), "EncodeError: an instance cannot be started"),  # type: ignore[arg-type]
        (leaf, "InvalidOutcome: ScheduleChildren takes Start(...) values, got Job"),
        (None, "RuntimeError: the list broke off"),
    ],
)
async def test_one_bad_child_is_the_steps_error(dsn: str, schema: str, entry: Any, bad: Any, words: str) -> None:
    """However late it comes: `on_error` is asked, and none of the children is made."""

    def broken(count: int) -> Iterator[Start[Any]]:
        for n in range(count):
            if n == 2345:
                if bad is None:
                    raise RuntimeError("the list broke off")
                yield bad
            yield Start(leaf, n)

    tree = making(broken)
    async with Durable(dsn, schema=schema) as app:
        async with Worker(app, machines=[tree], jobs=[leaf], queues=QUEUES):
            ending = await ended(await app.insert(entry, 4000))
        assert words in ending.error
        assert await count_of(dsn, schema) == 0


async def test_a_fan_out_is_bounded(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, told when the generator gets there, and by size."""
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Tree()], jobs=[leaf], queues=QUEUES):
        ending = await ended(await app.insert(Tree.spread, 200_000))
        assert "at most 100,000 are allowed at once" in ending.error
        monkeypatch.setattr("gen_durable.engine.outcome_encoder.MAX_CHILDREN_BYTES", 100_000)
        ending = await ended(await app.insert(Tree.spread, 5000))
        assert "TooLarge: the instances that one outcome starts are over 100,000 bytes" in ending.error
        assert await count_of(dsn, schema) == 0


@pytest.mark.parametrize("losing", [b'"state":1234,', b"commit\x00"])
async def test_a_lost_answer(dsn: str, schema: str, proxied: Proxied, losing: bytes) -> None:
    """The connection breaks after a part, or after the commit: the children are all there, once."""
    async with proxied() as proxy, Durable(proxy.dsn, schema=schema) as app, Durable(dsn, schema=schema) as direct:
        async with Worker(app, machines=[Tree()], jobs=[leaf], queues=QUEUES):
            proxy.losing = losing
            handle = await direct.insert(Tree.spread, 3000)
            assert (await ended(handle)).result == list(range(3000))
            assert proxy.lost == 1
        assert await count_of(dsn, schema) == 3000
        assert (await direct.get(handle.id)).seq == 2


async def test_all_or_none(dsn: str, schema: str) -> None:
    """Backends are killed in the middle: at no time is a part of the children to be seen."""
    async with Durable(dsn, schema=schema) as app:
        connection = await asyncpg.connect(dsn)
        seen: set[int] = set()
        try:
            async with Worker(app, machines=[Tree()], jobs=[leaf], queues={"default": 1}):
                handle = await app.insert(Tree.spread, 3000)
                waiting = asyncio.ensure_future(ended(handle))
                kills = 0
                while not waiting.done():
                    if kills < 5:
                        kills += await connection.fetchval(
                            "select count(*) from (select pg_terminate_backend(pid) from pg_stat_activity"
                            " where query like $1 and state <> 'idle') as t",
                            f'%"{schema}".insert_instances_of_outcomes(%',
                        )
                    seen.add(await connection.fetchval(CHILDREN.format(schema)))
            assert (await waiting).result == list(range(3000))
            assert kills >= 5
            assert seen == {0, 3000}
        finally:
            await connection.close()


async def claimed(app: Durable) -> Claim:
    await app.insert(leaf, 0, queue="parents")
    (claim,) = (
        await services_of(app).pool.run(services_of(app).statements.pick("w", {"parents": 1}, ["leaf/1/run"], 60))
    ).claims
    return claim


def many(claim: Claim, keys: list[int]) -> Commit:
    of = ManyChildren.empty()
    for n in keys:
        key = f"{n:06}".encode().hex()
        child = (
            '{"fsm":"leaf","version":1,"step":"run","state":1,"queue":"default","priority":0,"delay":0,'
            f'"unique_key":"{key}","unique_scope":"{{runnable}}"}}'
        )
        of.add(child.encode(), key.encode())
    return Commit(claim.id, claim.epoch, claim.seq, "children", step="run", value="1", many_children=of)


async def written(link: PersistentConnection, app: Durable, commit: Commit) -> FlushResult:
    """As the flusher does it: a lock that was not to be had in time is asked for again."""
    while True:
        with contextlib.suppress(asyncpg.LockNotAvailableError):
            return await link.run_in_transaction(
                functools.partial(
                    outcome_and_children_flusher.flush_outcome_and_children,
                    statements=services_of(app).statements,
                    commit=commit,
                )
            )


async def test_two_fan_outs_with_the_same_keys_do_not_deadlock(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take their keys in one order, across all parts: one waits for the other."""
    monkeypatch.setattr(outcome_and_children_flusher, "INSERT_BATCH", 10)
    async with Durable(dsn, schema=schema) as app:
        for _ in range(3):
            one, two = await claimed(app), await claimed(app)
            links = [
                PersistentConnection(services_of(app).connection_target),
                PersistentConnection(services_of(app).connection_target),
            ]
            keys = list(range(one.id * 1000, one.id * 1000 + 200))
            commits = [many(one, keys), many(two, keys[::-1])]
            try:
                answers = await asyncio.gather(
                    *(written(link, app, commit) for link, commit in zip(links, commits, strict=True))
                )
            finally:
                for link in links:
                    await link.close()
            assert all(not answer.stale_ids for answer in answers)
            assert await count_of(dsn, schema) % 200 == 0


async def test_a_stale_fan_out_makes_no_children(dsn: str, schema: str) -> None:
    """The claim was taken over: the fence is asked before the first child."""
    async with Durable(dsn, schema=schema) as app:
        claim = await claimed(app)
        await services_of(app).pool.run(
            services_of(app).statements.release_claims([(claim.id, claim.epoch, None, None)])
        )
        target = services_of(app).connection_target
        links = PersistentConnection(target), SlowCommitConnections(target, 1), SlowCommitConnections(target, 1)
        flush = Committer(*links, services_of(app).statements, 500, notifier=services_of(app).notifier)
        try:
            assert await flush.commit(many(claim, list(range(2000)))) is CommitResult.STALE
        finally:
            await flush.close_and_cancel_flushes()
            for link in links:
                await link.close()
        assert await count_of(dsn, schema) == 0


async def test_others_commit_while_a_fan_out_is_committed(dsn: str, schema: str) -> None:
    """A large fan-out is not in the way of the outcomes beside it."""
    queues = {"default": 5, "beside": 5}
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Tree()], jobs=[leaf], queues=queues):
        await app.insert(Tree.spread, 20_000)
        beside = 0
        while await count_of(dsn, schema) == 0:
            assert isinstance(await ended(await app.insert(leaf, 1, queue="beside")), Finished)
            beside += 1
        assert beside >= 5


class Wide(Machine):
    """A few large children, given as a list."""

    @step
    async def spread(self, count: int, ctx: Context) -> Outcome[int]:
        return ScheduleChildren([Start(long, "x" * 1000) for _ in range(count)], then=self.join, state=count)

    @step
    async def join(self, count: int, ctx: Context) -> Outcome[int]:
        return Done(sum(ctx.results(long)))


@job
async def long(text: str) -> int:
    return len(text)


async def test_large_children_go_in_statements_of_bounded_size(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer children than one statement may have, but too large together: they go in parts, in one transaction."""
    monkeypatch.setattr(outcome_encoder, "CHUNK_BYTES", 5000)
    monkeypatch.setattr(outcome_and_children_flusher, "INSERT_BYTES", 5000)
    sent: list[int] = []
    insert_instances_of_outcomes = StatementBuilder.insert_instances_of_outcomes

    def counted(self: StatementBuilder, commit: Commit, children: str) -> Any:
        sent.append(len(children))
        return insert_instances_of_outcomes(self, commit, children)

    monkeypatch.setattr(StatementBuilder, "insert_instances_of_outcomes", counted)
    async with Durable(dsn, schema=schema) as app, Worker(app, machines=[Wide()], jobs=[long], queues=QUEUES):
        assert (await ended(await app.insert(Wide.spread, 20))).result == 20_000
    assert max(sent) < 5100
    assert len(sent) >= 5
