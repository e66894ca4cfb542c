"""Debounce, met by a pick and by itself: no call is lost, and no state that was replaced runs."""

from __future__ import annotations

from collections import Counter

from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.machine import M
from tests.support.rows import instance, seconds

from gen_durable.operations.start_or_update import make_debounce
from gen_durable.starts import Start
from gen_durable.store.start_or_update import StartOrUpdateResult, StartOrUpdateStatementBuilder
from gen_durable.store.statements import Statement, StatementBuilder

QUIET = ("insert_if_key_free", "send_first_signals", "notify_workers")
WAITING = instance(1, state="0", unique_key=b"k", unique_scope="{runnable}", eligible_at=seconds(-1))


def debounce(calls: StatementBuilder, number: int) -> Statement[StartOrUpdateResult]:
    start = Start(M.s, number, unique_key="k", unique_scope=["runnable"], delay=60)
    return StartOrUpdateStatementBuilder(calls.schema).start_or_update(make_debounce(start, None))


def never_lost(end: End) -> None:
    """The state of the call waits, or the claim carries it: a claim with the old state leaves a second instance."""
    answer, claims = end.left[0], end.right[0].claims
    if claims:
        assert [claim.state for claim in claims] == ["0"]
        assert answer.verdict == "started"
        assert answer.target != 1
    else:
        assert (answer.verdict, answer.target) == ("restarted", 1)
    waiting = end.rows[answer.target]
    assert (waiting["state"], waiting["status"], waiting["unique_guard"]) == ("1", "runnable", b"k")
    assert len(end.rows) == 1 + len(claims)


async def test_debounce_pick(exploring: Exploring, calls: StatementBuilder) -> None:
    """The pick comes first and a new instance waits, or the pick finds nothing that is due."""
    picked: Counter[int] = Counter()

    def check(end: End) -> None:
        picked[len(end.right[0].claims)] += 1
        never_lost(end)

    pick = calls.pick("w", {"default": 1}, ["m/1/s"], 60)
    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(WAITING, [debounce(calls, 1)], [pick], check, begin=True)
    assert report.faults == []
    assert set(picked) == {0, 1}


async def test_without_the_lock_a_call_is_lost(exploring: Exploring, calls: StatementBuilder) -> None:
    """An instance that was read and not locked may be claimed: its claim runs the old state, and no other waits."""
    unlocked = Cure("debounce", "    for no key update;", "    ;")
    pick = calls.pick("w", {"default": 1}, ["m/1/s"], 60)
    async with exploring(unlocked, quiet=QUIET) as explorer:
        report = await explorer.explore(WAITING, [debounce(calls, 1)], [pick], never_lost, begin=True, first_fault=True)
    assert len(report.faults) == 1


async def test_debounce_debounce(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two first calls: one instance, with the state of the call that committed last."""

    def one_waits(end: End) -> None:
        ((id_, row),) = end.rows.items()
        assert {end.left[0].target, end.right[0].target} == {id_}
        assert sorted([end.left[0].verdict, end.right[0].verdict]) == ["restarted", "started"]
        assert row["state"] == ("2" if end.commits.endswith("B") else "1")

    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore("", [debounce(calls, 1)], [debounce(calls, 2)], one_waits)
    assert report.faults == []
    once = Cure("debounce", "for try in 1..20 loop", "for try in 1..1 loop")
    async with exploring(once, quiet=QUIET) as explorer:
        report = await explorer.explore("", [debounce(calls, 1)], [debounce(calls, 2)], one_waits, first_fault=True)
    assert [fault.sqlstates for fault in report.faults] == [{"40001"}]


async def test_debounce_debounce_of_a_waiting_instance(exploring: Exploring, calls: StatementBuilder) -> None:
    """Two later calls: both restart the delay, and the last state stays."""

    def last_wins(end: End) -> None:
        assert [end.left[0].verdict, end.right[0].verdict] == ["restarted", "restarted"]
        assert end.rows[1]["state"] == ("2" if end.commits.endswith("B") else "1")

    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(WAITING, [debounce(calls, 1)], [debounce(calls, 2)], last_wins)
    assert report.faults == []


async def test_debounce_cancel(exploring: Exploring, calls: StatementBuilder) -> None:
    """The waiting instance is cancelled meanwhile: the call came first and is cancelled with it, or a new one waits."""

    def cancelled_or_new(end: End) -> None:
        answer = end.left[0]
        assert end.rows[1]["status"] == "cancelled"
        if answer.target == 1:
            assert end.commits.startswith("A")
        else:
            assert end.rows[answer.target]["status"] == "runnable"

    cancel = calls.cancel([(1, None)], "no", cascade=True)
    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(WAITING, [debounce(calls, 1)], [cancel], cancelled_or_new, begin=True)
    assert report.faults == []
    assert len(report.ends) == 2
