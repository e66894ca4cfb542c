"""Committer: what it does when the database does not answer, and what it tells others about it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, TypeAlias, cast

import asyncpg
import pytest
from tests.engine.test_committer import Counting, Losing, cancel_tasks, claims, done, flusher
from tests.support.pauses import record_pauses

from gen_durable import Durable
from gen_durable.core.services import services_of
from gen_durable.engine import commit_queue, committer
from gen_durable.engine.committer import CommitResult, FutureCommitReceiver
from gen_durable.engine.outcome_rejection import describe_fault
from gen_durable.errors import OutcomeRejected
from gen_durable.pg import persistent_connection as pg_connection
from gen_durable.pg.connector import connect_to_first_usable_host
from gen_durable.pg.error_classifier import ConnectionLost
from gen_durable.pg.persistent_connection import ConnectionTarget
from gen_durable.store.statements import Statement
from gen_durable.store.types import Claim, Commit, FollowUps, ManyChildren

Slept: TypeAlias = list[float]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Slept:
    """The pauses that were slept, apart from those of zero seconds."""
    return record_pauses(monkeypatch)


async def test_two_outcomes_whose_connection_is_lost_are_sent_apart(dsn: str, schema: str, slept: Slept) -> None:
    """After a pause: a server that has just started again is not sent everything at once."""
    async with Durable(dsn, schema=schema) as app, flusher(app, Losing) as (flush, sizes, _):
        several = await claims(app, 2)
        cast(Any, flush)._statements.largest = 1
        answers = await asyncio.wait_for(asyncio.gather(*(flush.commit(done(c)) for c in several)), 20)
        assert set(answers) == {CommitResult.COMMITTED}
        assert sizes == [2, 1, 1]
        assert slept.count(committer.FIRST_PAUSE) == 1


async def test_a_flush_that_other_code_cancels_sends_only_what_is_not_answered(
    dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An outcome that was committed before is not sent again."""
    async with Durable(dsn, schema=schema) as app, flusher(app, Losing) as (flush, sizes, _):
        several = await claims(app, 2)
        cast(Any, flush)._statements.largest = 1
        first, second = (flush.commit(done(c)) for c in several)
        await asyncio.wait_for(first, 10)
        assert not second.done()
        cancel_tasks("gen_durable flush")
        assert await asyncio.wait_for(second, 10) is CommitResult.COMMITTED
        assert "a flush was cancelled by other code: 1 outcomes are sent again" in caplog.messages
        assert sizes[-1] == 1


@pytest.mark.parametrize(("count", "failures", "warnings"), [(2, 3, 0), (2, 4, 1), (1, 6, 1)])
async def test_outcomes_wait_together_for_a_server_that_cannot_be_reached(
    dsn: str,
    schema: str,
    *,
    count: int,
    failures: int,
    warnings: int,
    slept: Slept,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing was sent, so the batch is neither halved nor set aside: it is tried again, after growing pauses."""
    left = failures

    async def refuse(target: ConnectionTarget, *args: Any) -> Any:
        nonlocal left
        if left and target.application_name == f"flush {schema}":
            left -= 1
            raise ConnectionRefusedError("no server")
        return await connect_to_first_usable_host(target, *args)

    monkeypatch.setattr(pg_connection, "connect_to_first_usable_host", refuse)
    monkeypatch.setattr(committer, "FIRST_PAUSE", 0.002)
    monkeypatch.setattr(committer, "LONGEST_PAUSE", 0.016)
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, sizes, _):
        several = await claims(app, count)
        slept.clear()
        answers = await asyncio.wait_for(asyncio.gather(*(flush.commit(done(c)) for c in several)), 20)
        assert set(answers) == {CommitResult.COMMITTED}
        assert sizes == [count] * (failures + 1)
        assert cast(Any, flush)._locked.count == 0
        longest = [min(0.002 * 2**n, 0.016) for n in range(failures)]
        # Shortened at random, so that many workers do not try again at the same time.
        pauses = [seconds for seconds in slept if seconds <= 0.016]
        assert len(pauses) == failures
        assert all(most / 2 <= seconds < most for seconds, most in zip(pauses, longest, strict=True))
        logged = "outcomes cannot be committed (ConnectionRefusedError: no server); trying again"
        assert [m for m in caplog.messages if "cannot be committed" in m] == [logged] * warnings


class TimingOut(Counting):
    """Statements whose larger batches time out at once, as if they had waited for a lock."""

    largest: int = 3
    checked: list[list[int]]

    def flush(self, commits, worker=None, now=0.0):  # type: ignore[no-untyped-def]
        statement = super().flush(commits, worker, now)
        if len(commits) > self.largest:
            return Statement("do $$ begin raise exception using errcode = '55P03'; end $$", (), statement.read)
        return statement

    def unlocked_ids(self, ids):  # type: ignore[no-untyped-def]
        self.checked = [*getattr(self, "checked", []), list(ids)]
        return super().unlocked_ids(ids)


async def test_an_outcome_whose_parent_is_locked_is_set_aside(dsn: str, schema: str) -> None:
    """The flush locks the parent of a row that ends. Outcomes of which neither row is locked go together."""
    connection = await asyncpg.connect(dsn)
    async with Durable(dsn, schema=schema) as app, flusher(app, TimingOut) as (flush, sizes, _):
        alone, free_child, child, locked, free_parent, parent = await claims(app, 6)
        commits = [done(alone), done(free_child), done(child), done(locked)]
        commits[1].parent, commits[2].parent = free_parent.id, parent.id
        async with connection.transaction():
            await connection.execute(
                f'select from "{schema}".instances where id = any ($1) for update', [parent.id, locked.id]
            )
            futures = [flush.commit(commit) for commit in commits]
            first = await asyncio.wait_for(asyncio.gather(*futures[:2]), 10)
            assert first == [CommitResult.COMMITTED] * 2
            assert (sizes[:2], futures[2].done(), futures[3].done()) == ([4, 2], False, False)
        rest = await asyncio.wait_for(asyncio.gather(*futures[2:]), 10)
        assert rest == [CommitResult.COMMITTED] * 2
        assert await asyncio.gather(*(flush.commit(done(c)) for c in (free_parent, parent))) == rest
    await connection.close()


class Uncheckable(TimingOut):
    """Statements that cannot tell which rows are locked."""

    def unlocked_ids(self, ids):  # type: ignore[no-untyped-def]
        return Statement("select 1 / 0", (), super().unlocked_ids(ids).read)


async def test_a_batch_is_halved_if_it_is_unknown_which_row_is_locked(dsn: str, schema: str) -> None:
    """Each outcome is answered all the same."""
    async with Durable(dsn, schema=schema) as app, flusher(app, Uncheckable) as (flush, sizes, _):
        several = await claims(app, 4)
        cast(Any, flush)._statements.largest = 2
        answers = await asyncio.wait_for(asyncio.gather(*(flush.commit(done(c)) for c in several)), 10)
        assert set(answers) == {CommitResult.COMMITTED}
        assert sizes == [4, 2, 2]


async def test_an_outcome_that_waits_for_a_side_connection_is_checked_before_it_is_sent(
    dsn: str, schema: str, slept: Slept
) -> None:
    """Its row may have been locked meanwhile; where none has waited, or for a large outcome, there is no check."""
    async with Durable(dsn, schema=schema) as app, flusher(app, TimingOut) as (flush, sizes, _):
        first, second, *large = await claims(app, 5)
        statements = cast(Any, flush)._statements
        statements.checked = []

        def send_aside(claim: Claim) -> asyncio.Future[CommitResult]:
            future: asyncio.Future[CommitResult] = asyncio.get_running_loop().create_future()
            cast(Any, flush)._start_side_flush((done(claim), FutureCommitReceiver(future)))
            return future

        assert await asyncio.wait_for(send_aside(first), 10) is CommitResult.COMMITTED
        assert statements.checked == []
        async with AsyncExitStack() as side_connections:
            for _ in range(4):
                await side_connections.enter_async_context(cast(Any, flush)._locked.acquire())
            waiting = send_aside(second)
            await asyncio.sleep(0)
            assert sizes == [1]
        assert await asyncio.wait_for(waiting, 10) is CommitResult.COMMITTED
        assert (statements.checked, sizes) == ([[second.id]], [1, 1])
        assert min(slept, default=1.0) > committer.FIRST_PAUSE
        text = '"' + "x" * commit_queue.LARGE_OUTCOME + '"'
        answers = await asyncio.wait_for(asyncio.gather(*(flush.commit(done(c, text)) for c in large)), 10)
        assert set(answers) == {CommitResult.COMMITTED}
        assert len(statements.checked) == 1


async def test_enqueue_tells_whether_an_outcome_is_written_apart(dsn: str, schema: str) -> None:
    """A payload of exactly LARGE_OUTCOME bytes is not. The committer is idle when both are answered."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, _):
        small, large, third = await claims(app, 3)
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[CommitResult]] = [loop.create_future() for _ in range(2)]
        assert flush.is_idle
        text = "x" * (commit_queue.LARGE_OUTCOME - 2)
        assert flush.enqueue_or_flush_apart(done(small, f'"{text}"'), FutureCommitReceiver(futures[0])) is False
        assert not flush.is_idle
        await asyncio.wait_for(flush.wait_until_idle(), 10)
        assert (flush.is_idle, futures[0].done()) == (True, True)
        assert flush.enqueue_or_flush_apart(done(large, f'"{text}x"'), FutureCommitReceiver(futures[1])) is True
        assert not flush.is_idle
        last = flush.commit(done(third))
        await asyncio.wait_for(flush.wait_until_idle(), 10)
        assert (flush.is_idle, futures[1].done(), last.done()) == (True, True, True)


async def test_cancelled_flushes_are_not_repeated(dsn: str, schema: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker that stops gives up what the database does not answer; its rows are left to their leases."""
    connection = await asyncpg.connect(dsn)
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, sizes, _):
        small, large = several = await claims(app, 2)
        async with connection.transaction():
            await connection.execute(
                f'select from "{schema}".instances where id = any ($1) for update', [c.id for c in several]
            )
            futures = [
                flush.commit(done(small)),
                flush.commit(done(large, '"' + "x" * commit_queue.LARGE_OUTCOME + '"')),
            ]
            while len(sizes) < 2:  # noqa: ASYNC110 - the database does not tell that it waits for a lock
                await asyncio.sleep(0.01)
            assert not flush.is_idle
            async with asyncio.timeout(10):
                await flush.close_and_cancel_flushes()
            sent = len(sizes)
            for _ in range(3):
                assert flush.is_idle
                await asyncio.sleep(0)
            assert (len(sizes), [future.done() for future in futures], caplog.messages) == (sent, [False] * 2, [])
        await services_of(app).pool.run(
            services_of(app).statements.release_claims([(c.id, c.epoch, None, None) for c in several])
        )
    await connection.close()


async def test_a_future_that_its_owner_has_cancelled_is_left_alone() -> None:
    """The first answer counts, too."""
    loop = asyncio.get_running_loop()
    cancelled, answered = FutureCommitReceiver(loop.create_future()), FutureCommitReceiver(loop.create_future())
    assert not cancelled.is_answered
    cancelled.future.cancel()
    assert cancelled.is_answered
    cancelled.receive_commit_result(CommitResult.COMMITTED)
    answered.receive_commit_result(CommitResult.STALE)
    answered.receive_commit_result(OutcomeRejected("no"))
    assert answered.future.result() is CommitResult.STALE


class OwnSqlError(asyncpg.PostgresError):
    """An error that gen_durable's own SQL functions raise."""

    sqlstate = "GD001"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (asyncpg.CheckViolationError("secret"), "CheckViolationError, SQLSTATE 23514"),
        (OwnSqlError("no such step"), "no such step"),
        (ConnectionLost(OSError("no route"), sent=True), "OSError: no route"),
    ],
)
def test_a_fault_is_described_without_payloads(error: Exception, text: str) -> None:
    assert describe_fault(error) == text


async def test_the_queues_of_many_children_are_woken(dsn: str, schema: str) -> None:
    """They are inserted by statements of their own, before the flush. The history names the worker."""
    async with Durable(dsn, schema=schema) as app, flusher(app) as (flush, _, wakes):
        (claim,) = await claims(app, 1)
        cast(Any, flush)._worker = "w7"
        child = b'{"fsm":"noop","version":1,"step":"run","state":1,"queue":"%s","priority":0,"delay":0}'
        children = ManyChildren.empty()
        for queue in (b"mail", b"default"):
            children.add(child % queue, None)
        commit = Commit(claim.id, claim.epoch, claim.seq, "children", step="run", value="1", many_children=children)
        commit.ran_step = "run"
        assert await asyncio.wait_for(flush.commit(commit), 10) is CommitResult.COMMITTED
        assert wakes == [FollowUps(frozenset({"mail", "default"}))]
        (transition,) = await app.history(claim.id)
        assert transition.worker == "w7"
