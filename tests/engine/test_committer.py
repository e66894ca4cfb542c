"""Committer: group commit, and one culprit never harms the batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import asyncpg
import pytest

from gen_durable import Durable, Start, job
from gen_durable.core.services import services_of
from gen_durable.engine import commit_queue
from gen_durable.engine.committer import CommitResult, Committer
from gen_durable.engine.slow_commit_connections import SlowCommitConnections
from gen_durable.errors import OutcomeRejected
from gen_durable.pg.persistent_connection import ConnectionTarget, PersistentConnection
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Claim, Commit, FollowUps, ManyChildren


@job
async def noop(n: int) -> int:
    """Never run here: the tests claim and commit by hand."""
    return n


class Counting(StatementBuilder):
    """Statements that count the flushes."""

    sizes: list[int]

    def flush(self, commits, worker=None, now=0.0):  # type: ignore[no-untyped-def]
        self.sizes.append(len(commits))
        return super().flush(commits, worker, now)


class Notifications:
    """Keeps what a notifier would publish; None for an answer that does not name the queues."""

    def __init__(self, published: list[FollowUps | None]) -> None:
        self._published = published

    def act_on_follow_ups(self, follow_ups: FollowUps) -> None:
        self._published.append(follow_ups)

    def wake_local_workers(self) -> None:
        self._published.append(None)


@asynccontextmanager
async def flusher(
    app: Durable, statements: type[Counting] = Counting
) -> AsyncIterator[tuple[Committer, list[int], list[FollowUps | None]]]:
    calls = statements(services_of(app).statements.schema)
    calls.sizes = []
    target = ConnectionTarget(
        services_of(app).connection_target.dsn, application_name=f"flush {services_of(app).statements.schema.name}"
    )
    links = PersistentConnection(target), SlowCommitConnections(target, 4), SlowCommitConnections(target, 2)
    wakes: list[FollowUps | None] = []
    flush = Committer(*links, calls, 500, notifier=cast(Any, Notifications(wakes)))
    try:
        yield flush, calls.sizes, wakes
    finally:
        await flush.close_and_cancel_flushes()
        for link in links:
            await link.close()


async def claims(app: Durable, count: int) -> list[Claim]:
    await app.insert_many([Start(noop, n) for n in range(count)])
    picked = await services_of(app).pool.run(
        services_of(app).statements.pick("w", {"default": count}, ["noop/1/run"], 60)
    )
    return picked.claims


def done(claim: Claim, value: str = "1") -> Commit:
    return Commit(claim.id, claim.epoch, claim.seq, "done", value=value)


async def test_outcomes_gather_while_a_flush_is_under_way(dsn: str, schema: str) -> None:
    """What comes in one turn of the loop goes in one statement; what comes meanwhile goes together in the next."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, sizes, _):
        several = await claims(app, 100)
        first = [flush.commit(done(c)) for c in several[:10]]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [flush.commit(done(c)) for c in several[10:]]
        assert flush.unanswered_in_batches == 100
        assert set(await asyncio.gather(*first, *rest)) == {CommitResult.COMMITTED}
        assert sizes == [10, 90]


async def test_an_outcome_that_the_database_refuses_fails_alone(dsn: str, schema: str) -> None:
    """Of a hundred, one that jsonb refuses is rejected; the others commit, in few statements."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, sizes, _):
        several = await claims(app, 100)
        futures = [flush.commit(done(c, '"\\u0000"' if n == 37 else "1")) for n, c in enumerate(several)]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(answers[37], OutcomeRejected)
        assert str(answers[37]) == (
            f"the database refused the outcome of instance {several[37].id}: "
            "UntranslatableCharacterError, SQLSTATE 22P05"
        )
        assert [a for n, a in enumerate(answers) if n != 37] == [CommitResult.COMMITTED] * 99
        assert len(sizes) <= 15
        # Give the culprit's row back, for the doctor's sake.
        await services_of(app).pool.run(
            services_of(app).statements.release_claims([(several[37].id, several[37].epoch, None, None)])
        )


async def test_a_row_held_by_a_long_transaction_does_not_hold_up_its_batch_mates(dsn: str, schema: str) -> None:
    """An outcome whose row is locked is set aside; it commits when the lock is given back."""
    connection = await asyncpg.connect(dsn)
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, sizes, _):
        several = await claims(app, 20)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(f'select from "{schema}".instances where id = $1 for update', several[7].id)
        futures = [flush.commit(done(c)) for c in several]
        others = await asyncio.wait_for(asyncio.gather(*futures[:7], *futures[8:]), 10)
        assert set(others) == {CommitResult.COMMITTED}
        assert not futures[7].done()
        assert sizes[:2] == [20, 19]
        await transaction.rollback()
        assert await asyncio.wait_for(futures[7], 10) is CommitResult.COMMITTED
    await connection.close()


async def test_a_stale_outcome_is_told_apart_in_a_batch(dsn: str, schema: str) -> None:
    """Of three outcomes the one whose claim was given back meanwhile is stale, the others commit."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, _):
        several = await claims(app, 3)
        await services_of(app).pool.run(
            services_of(app).statements.release_claims([(several[1].id, several[1].epoch, None, None)])
        )
        answers = await asyncio.gather(*(flush.commit(done(c)) for c in several))
        assert answers == [CommitResult.COMMITTED, CommitResult.STALE, CommitResult.COMMITTED]


async def test_outcomes_of_one_instance_by_two_claims_go_apart(dsn: str, schema: str) -> None:
    """A worker has lost a claim, won the row back, and hands in both outcomes: each is answered, nothing is refused."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, sizes, _):
        several = await claims(app, 3)
        former = several[1]
        await services_of(app).pool.run(
            services_of(app).statements.release_claims([(former.id, former.epoch, None, None)])
        )
        (again,) = (
            await services_of(app).pool.run(services_of(app).statements.pick("w", {"default": 1}, ["noop/1/run"], 60))
        ).claims
        handed_in = [several[0], former, several[2], again]
        commits = [Commit(c.id, c.epoch, c.seq, "done", value="1", ran_step="run") for c in handed_in]
        answers = await asyncio.gather(*(flush.commit(commit) for commit in commits))
        assert answers == [CommitResult.COMMITTED, CommitResult.STALE, CommitResult.COMMITTED, CommitResult.COMMITTED]
        assert sizes == [3, 1]  # together they would have been refused, and halved


@pytest.mark.parametrize("kill_first", [False, True])
async def test_a_killed_backend_is_not_noticed(dsn: str, schema: str, kill_first: bool) -> None:
    """The flusher's backend is terminated before or between flushes: the outcome is committed all the same."""
    connection = await asyncpg.connect(dsn)
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, _):
        first, second = await claims(app, 2)
        if not kill_first:
            assert await flush.commit(done(first)) is CommitResult.COMMITTED
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = $1 and pid <> pg_backend_pid()",
            f"flush {schema}",
        )
        assert await flush.commit(done(second)) is CommitResult.COMMITTED
        if kill_first:
            assert await flush.commit(done(first)) is CommitResult.COMMITTED
    await connection.close()


async def test_an_outcome_found_committed_has_all_queues_looked_at(dsn: str, schema: str) -> None:
    """What an earlier try woke is not known any more, so nobody is left asleep for it."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, wakes):
        (claim,) = await claims(app, 1)
        again = Commit(claim.id, claim.epoch, claim.seq, "next", step="run", value="1")
        await services_of(app).pool.run(services_of(app).statements.flush([again]))  # the try whose answer was lost
        assert await flush.commit(again) is CommitResult.COMMITTED
        assert wakes == [None]


async def test_a_key_held_by_an_open_transaction_does_not_hold_up_batch_mates(dsn: str, schema: str) -> None:
    """A child's key that somebody is about to take blocks only its own parent; the others commit meanwhile."""
    connection = await asyncpg.connect(dsn)
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, _):
        several = await claims(app, 8)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            f'insert into "{schema}".instances (fsm, step, unique_key, unique_scope) '
            "values ('noop', 'run', 'k', '{runnable}')"
        )
        child = '{"fsm":"noop","version":1,"step":"run","state":1,"queue":"default","priority":0,"delay":0,'
        child += f'"unique_key":"{b"k".hex()}","unique_scope":"{{runnable}}"}}'
        spawning = several[3]
        parent = Commit(
            spawning.id,
            spawning.epoch,
            spawning.seq,
            "children",
            step="run",
            value="1",
            extra=f'{{"children":[{child}]}}',
        )
        futures = [flush.commit(parent if c is spawning else done(c)) for c in several]
        others = await asyncio.wait_for(asyncio.gather(*futures[:3], *futures[4:]), 20)
        assert set(others) == {CommitResult.COMMITTED}
        assert not futures[3].done()
        await transaction.rollback()
        assert await asyncio.wait_for(futures[3], 10) is CommitResult.COMMITTED
    await connection.close()


async def test_an_empty_answer_wakes_nobody(dsn: str, schema: str) -> None:
    """A flush that made nothing runnable rings no bell; one that did names the queue."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, wakes):
        first, second = await claims(app, 2)
        await flush.commit(done(first))
        assert wakes == []
        await flush.commit(Commit(second.id, second.epoch, second.seq, "retry", value="1"))
        assert wakes == [FollowUps(frozenset({"default"}))]


class Broken(Counting):
    """Statements that fail with an error of Python for one instance, before anything is sent."""

    culprit: int = 0

    def flush(self, commits, worker=None, now=0.0):  # type: ignore[no-untyped-def]
        statement = super().flush(commits, worker, now)
        if any(commit.id == self.culprit for commit in commits):
            raise TypeError("secret payload")
        return statement


async def test_an_unexpected_error_rejects_one_outcome_and_commits_the_others(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake of the engine costs the outcome that meets it: it is answered, and the committer goes on."""
    async with Durable(dsn, schema=schema) as app, flusher(app, Broken) as (flush, sizes, _):
        several = await claims(app, 20)
        cast(Any, flush)._statements.culprit = several[7].id
        answers = await asyncio.wait_for(
            asyncio.gather(*(flush.commit(done(c)) for c in several[:15]), return_exceptions=True), 20
        )
        assert isinstance(answers[7], OutcomeRejected)
        assert [a for n, a in enumerate(answers) if n != 7] == [CommitResult.COMMITTED] * 14
        assert len(sizes) <= 10
        later = await asyncio.wait_for(asyncio.gather(*(flush.commit(done(c)) for c in several[15:])), 20)
        assert later == [CommitResult.COMMITTED] * 5
        logged = [r.getMessage() for r in caplog.records if "TypeError" in r.getMessage()]
        assert len(logged) == 1
        assert "secret" not in caplog.text
        cast(Any, flush)._statements.culprit = 0
        await flush.commit(done(several[7]))


class RaisingReceiver:
    """A receiver with a mistake in it."""

    def receive_commit_result(self, result: CommitResult | OutcomeRejected) -> None:
        raise KeyError("secret payload")


async def test_a_receiver_that_raises_does_not_keep_the_answers_of_others(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The answers of one flush are given one by one: each arrives, whatever another's receiver does."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, _):
        several = await claims(app, 4)
        flush.enqueue_or_flush_apart(done(several[0]), RaisingReceiver())
        answers = await asyncio.wait_for(asyncio.gather(*(flush.commit(done(c)) for c in several[1:])), 10)
        assert answers == [CommitResult.COMMITTED] * 3
        assert "KeyError" in caplog.text
        assert "secret" not in caplog.text


async def test_a_mistake_in_a_fan_out_is_answered(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that are committed in a transaction of their own: an error of Python in it is no lost connection."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, _):
        (claim,) = await claims(app, 1)
        children = ManyChildren.empty()
        children.add(b'{"fsm":"noop"}', None)
        monkeypatch.setattr(ManyChildren, "encode_parts", None)
        commit = Commit(claim.id, claim.epoch, claim.seq, "children", step="run", value="1", many_children=children)
        with pytest.raises(OutcomeRejected, match="TypeError"):
            await asyncio.wait_for(flush.commit(commit), 10)
        assert await asyncio.wait_for(flush.commit(done(claim)), 10) is CommitResult.COMMITTED


async def test_a_flush_is_cut_by_bytes(dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large outcomes go in several statements; one that is larger than the bound goes alone; small ones do not wait."""
    monkeypatch.setattr(commit_queue, "MAX_FLUSH_BYTES", 1000)
    monkeypatch.setattr(commit_queue, "SMALL_OUTCOME", 10)
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, sizes, _):
        several = await claims(app, 9)
        lengths = [400, 400, 400, 1, 1, 5000, 1, 600, 600]
        answers = await asyncio.gather(
            *(flush.commit(done(c, '"' + "x" * n + '"')) for c, n in zip(several, lengths, strict=True))
        )
        assert set(answers) == {CommitResult.COMMITTED}
        assert sizes == [5, 1, 1, 1, 1]


async def test_a_small_outcome_does_not_wait_for_many_bytes_before_it(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes with the next flush, whatever was queued before; each of the others has its turn."""
    monkeypatch.setattr(commit_queue, "MAX_FLUSH_BYTES", 1000)
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, sizes, _):
        *several, last = await claims(app, 10)
        monkeypatch.setattr(commit_queue, "SMALL_OUTCOME", 100)
        large = [asyncio.ensure_future(flush.commit(done(c, '"' + "x" * 900 + '"'))) for c in several]
        small = asyncio.ensure_future(flush.commit(done(last, '"x"')))
        await asyncio.wait([small])
        assert [future.done() for future in large] == [True] + [False] * 8
        assert set(await asyncio.gather(*large)) == {CommitResult.COMMITTED}
        assert sizes == [2] + [1] * 8


async def test_a_large_outcome_does_not_hold_up_the_others(dsn: str, schema: str) -> None:
    """It is written apart: small outcomes are committed while it waits for a lock, and before it."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, sizes, _):
        large, *small = await claims(app, 4)
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute("begin")
            await connection.execute(f'select from "{schema}".instances where id = {large.id} for update')
            waiting = flush.commit(done(large, '"' + "x" * commit_queue.LARGE_OUTCOME + '"'))
            await asyncio.sleep(0)
            assert [cast(Any, flush)._locked.count, cast(Any, flush)._fan_outs.count] == [0, 1]
            began = time.monotonic()
            await asyncio.wait_for(asyncio.gather(*(flush.commit(done(c)) for c in small)), 10)
            assert time.monotonic() - began < 0.8  # a flush waits a second for a lock
            assert not waiting.done()
            await connection.execute("rollback")
        finally:
            await connection.close()
        assert await asyncio.wait_for(waiting, 10) is CommitResult.COMMITTED
        assert sorted(sizes)[-1] == 3


class Losing(Counting):
    """Statements after which the connection is lost while a batch is larger than the server takes."""

    largest: int = 3

    def flush(self, commits, worker=None, now=0.0):  # type: ignore[no-untyped-def]
        statement = super().flush(commits, worker, now)
        if len(commits) > self.largest:
            return Statement("select pg_terminate_backend(pg_backend_pid())", (), statement.read)
        return statement


async def test_a_batch_whose_connection_is_lost_is_sent_in_halves(dsn: str, schema: str) -> None:
    """A batch that the server cannot take ends its connection each time: only smaller ones get through."""
    async with Durable(dsn, schema=schema) as app, flusher(app, Losing) as (flush, sizes, _):
        several = await claims(app, 10)
        answers = await asyncio.wait_for(asyncio.gather(*(flush.commit(done(c)) for c in several)), 20)
        assert set(answers) == {CommitResult.COMMITTED}
        assert sizes == [10, 5, 2, 3, 5, 2, 3]


async def test_an_outcome_that_always_loses_the_connection_does_not_hold_up_others(dsn: str, schema: str) -> None:
    """It is tried again on the second connection, apart from the batches."""
    async with Durable(dsn, schema=schema) as app, flusher(app, Losing) as (flush, sizes, _):
        poison, *others = await claims(app, 5)
        cast(Any, flush)._statements.largest = 0
        lost = flush.commit(done(poison))
        async with AsyncExitStack() as side_connections:
            for _ in range(4):
                await side_connections.enter_async_context(cast(Any, flush)._locked.acquire())
            await asyncio.wait([cast(Any, flush)._task], timeout=20)
            assert (flush.unanswered_in_batches, lost.done(), sizes) == (0, False, [1] * 4)
        cast(Any, flush)._statements.largest = 500
        answers = await asyncio.wait_for(asyncio.gather(*(flush.commit(done(c)) for c in others)), 10)
        assert set(answers) == {CommitResult.COMMITTED}
        assert await asyncio.wait_for(lost, 10) is CommitResult.COMMITTED


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_flush_that_other_code_cancels_is_repeated(
    dsn: str, schema: str, turns: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Before it has begun, and while the database works on it: each outcome is answered once."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, _):
        several = await claims(app, 20)
        futures = [flush.commit(done(c)) for c in several]
        for _ in range(turns):
            await asyncio.sleep(0)
        cancel_tasks("gen_durable flush")
        for _ in range(5):
            assert flush.unanswered_in_batches == 20
            await asyncio.sleep(0)
        assert set(await asyncio.wait_for(asyncio.gather(*futures), 10)) == {CommitResult.COMMITTED}
        assert "a flush was cancelled by other code: 20 outcomes are sent again" in caplog.messages
        assert flush.unanswered_in_batches == 0


async def test_outcomes_that_come_while_a_cancelled_flush_ends_go_with_the_next(dsn: str, schema: str) -> None:
    """In whichever iteration of the loop they come, one flush runs at a time."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, _):
        several = await claims(app, 20)
        futures = [flush.commit(done(c)) for c in several[:10]]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        cancel_tasks("gen_durable flush")
        for claim in several[10:]:
            futures.append(flush.commit(done(claim)))
            assert sum(task.get_name() == "gen_durable flush" for task in asyncio.all_tasks()) <= 1
            await asyncio.sleep(0)
        assert set(await asyncio.wait_for(asyncio.gather(*futures), 10)) == {CommitResult.COMMITTED}


async def test_a_large_outcome_whose_flush_other_code_cancels_is_repeated(dsn: str, schema: str) -> None:
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, _):
        (claim,) = await claims(app, 1)
        future = flush.commit(done(claim, f'"{"x" * 200_000}"'))
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        assert await asyncio.wait_for(future, 10) is CommitResult.COMMITTED


def cancel_tasks(name: str) -> None:
    found = [task for task in asyncio.all_tasks() if task.get_name() == name]
    assert found
    for task in found:
        task.cancel()
