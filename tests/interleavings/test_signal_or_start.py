"""Signal or start, met by others: never both, never neither, never two instances under the key."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.breakpoints import Cure
from tests.support.explorer import End
from tests.support.exploring import Exploring
from tests.support.machine import M, park
from tests.support.rows import LIVE, executing, instance, parked

from gen_durable.operations.start_or_update import make_signal_or_start
from gen_durable.signals import Signal
from gen_durable.starts import Start
from gen_durable.store.start_or_update import StartOrUpdateResult, StartOrUpdateStatementBuilder
from gen_durable.store.statements import Statement, StatementBuilder
from gen_durable.store.types import Commit

go = Signal("go", int)
KEY = {"unique_key": b"k", "unique_scope": LIVE}
QUIET = ("insert_if_key_free", "send_first_signals", "notify_workers")

# The dedup key is looked for before the call has the key, and not afterwards.
EARLY = (
    Cure(
        "signal_or_start",
        "  for try in 1..20 loop",
        """
  select s.target_id into receiver from @schema.instances i
  join @schema.signals s on s.target_id = i.id and s.dedup_key = signal_or_start.dedup_key where i.unique_key = key;
  if found then
    target := receiver;
    verdict := 'duplicate';
    return;
  end if;
  for try in 1..20 loop""",
    ),
    Cure("signal_or_start", "and i.id is distinct from new_id", "and false"),
)


def or_start(calls: StatementBuilder, number: int, dedup_key: str | None = None) -> Statement[StartOrUpdateResult]:
    call = make_signal_or_start("k", go, number, dedup_key, Start(M.s, {}))
    return StartOrUpdateStatementBuilder(calls.schema).start_or_update(call)


def live(end: End) -> list[int]:
    return [id_ for id_, row in end.rows.items() if row["finished_at"] is None]


def each_signal_once(end: End, *numbers: int) -> None:
    """Every payload lies in one inbox, that of the instance whose id its caller was given, and that inbox is known."""
    assert sorted(s["payload"] for s in end.signals) == [str(n) for n in numbers]
    assert all(end.rows[s["target_id"]]["has_signals"] for s in end.signals)
    assert sum(row["unique_guard"] is not None for row in end.rows.values()) <= 1


async def test_or_start_or_start(exploring: Exploring, calls: StatementBuilder) -> None:
    """One of the two starts the instance, the other delivers to it."""

    def one_started(end: End) -> None:
        (id_,) = end.rows
        answers = [end.left[0], end.right[0]]
        assert sorted(answer.verdict for answer in answers) == ["delivered", "started"]
        assert {answer.target for answer in answers} == {id_}
        each_signal_once(end, 1, 2)

    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore("", [or_start(calls, 1)], [or_start(calls, 2)], one_started)
    assert report.faults == []
    assert report.schedules > 5


async def test_or_start_or_start_with_one_dedup_key(exploring: Exploring, calls: StatementBuilder) -> None:
    """The same event twice: one call starts, the other is a duplicate with the same instance."""

    def once(end: End) -> None:
        (id_,) = end.rows
        answers = [end.left[0], end.right[0]]
        assert sorted(answer.verdict for answer in answers) == ["duplicate", "started"]
        assert {answer.target for answer in answers} == {id_}
        each_signal_once(end, 1)

    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore("", [or_start(calls, 1, "d")], [or_start(calls, 1, "d")], once)
    assert report.faults == []


async def test_or_start_insert(exploring: Exploring, calls: StatementBuilder) -> None:
    """A plain insert of the key: one instance, which has the signal whichever of the two inserted it."""

    def one(end: End) -> None:
        (id_,) = end.rows
        (inserted,) = end.right[0]
        assert (end.left[0].target, inserted.id) == (id_, id_)
        assert (end.left[0].verdict == "started") != inserted.new
        each_signal_once(end, 1)

    insert = calls.insert([Start(M.s, {}, unique_key="k")], "existing")
    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore("", [or_start(calls, 1)], [insert], one)
    assert report.faults == []
    assert report.schedules > 5


def delivered_or_started(end: End, old: int = 1) -> None:
    """The old holder received the signal before it ended, or a new instance lives with it."""
    answer = end.left[0]
    each_signal_once(end, 1)
    assert end.signals[0]["target_id"] == answer.target
    if answer.verdict == "delivered":
        assert answer.target == old
        assert live(end) == []
    else:
        assert answer.verdict == "started"
        assert live(end) == [answer.target]


async def test_or_start_end(exploring: Exploring, calls: StatementBuilder) -> None:
    """The holder ends meanwhile: it received the signal first, or a new instance has it."""
    ends = [calls.flush([Commit(1, 1, 0, "done", value="1")])]
    seen: Counter[str] = Counter()

    def check(end: End) -> None:
        seen[end.left[0].verdict] += 1
        delivered_or_started(end)

    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(executing(1, **KEY), [or_start(calls, 1)], ends, check, begin=True)
    assert report.faults == []
    assert set(seen) == {"delivered", "started"}


@pytest.mark.parametrize("given", [parked(1, **KEY), instance(1, **KEY)], ids=["parked", "runnable"])
async def test_or_start_cancel(exploring: Exploring, calls: StatementBuilder, given: str) -> None:
    """The holder is cancelled meanwhile: the same."""
    cancel = [calls.cancel([(1, None)], "no", cascade=True)]
    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(given, [or_start(calls, 1)], cancel, delivered_or_started, begin=True)
    assert report.faults == []
    assert len(report.ends) == 2


async def test_or_start_park(exploring: Exploring, calls: StatementBuilder) -> None:
    """The holder parks for this signal meanwhile: it is woken."""

    def woken(end: End) -> None:
        assert end.left[0].verdict == "delivered"
        assert end.rows[1]["status"] == "runnable"

    async with exploring(quiet=QUIET) as explorer:
        report = await explorer.explore(
            executing(1, **KEY), [or_start(calls, 1)], [calls.flush([park(1, "go")])], woken, begin=True
        )
    assert report.faults == []


async def test_or_start_start_and_end(exploring: Exploring, calls: StatementBuilder) -> None:
    """The same event by another caller, whose instance is picked and ends at once: it is not started again."""

    def once(end: End) -> None:
        assert len(end.rows) == 1
        each_signal_once(end, 1)
        assert sorted([end.left[0].verdict, end.right[0].verdict]) == ["duplicate", "started"]

    picked = calls.pick("w", {"default": 1}, ["m/1/s"], 60)
    ends = calls.flush([Commit(101, 1, 0, "done", value="1")])
    others = [or_start(calls, 1, "d"), picked, ends]
    quiet = (*QUIET, "insert", "signal", "pick", "flush")
    async with exploring(quiet=quiet) as explorer:
        report = await explorer.explore("", [or_start(calls, 1, "d")], others, once)
    assert report.faults == []
    async with exploring(*EARLY, quiet=quiet) as explorer:
        report = await explorer.explore("", [or_start(calls, 1, "d")], others, once, first_fault=True)
    assert len(report.faults) == 1


async def test_without_the_lock_a_signal_is_lost_with_its_holder(exploring: Exploring, calls: StatementBuilder) -> None:
    """A holder that was read and not locked may end before the delivery: neither delivered nor started."""
    unlocked = Cure("signal_or_start", "    for no key update;", "    ;")
    ends = [calls.flush([Commit(1, 1, 0, "done", value="1")])]
    async with exploring(unlocked, quiet=QUIET) as explorer:
        report = await explorer.explore(
            executing(1, **KEY), [or_start(calls, 1)], ends, delivered_or_started, first_fault=True
        )
    assert len(report.faults) == 1
    assert report.faults[0].sqlstates == frozenset()


async def test_with_one_try_two_calls_fail(exploring: Exploring, calls: StatementBuilder) -> None:
    """A call whose key was taken while it inserted must look again."""
    once = Cure("signal_or_start", "for try in 1..20 loop", "for try in 1..1 loop")
    async with exploring(once, quiet=QUIET) as explorer:
        report = await explorer.explore(
            "", [or_start(calls, 1)], [or_start(calls, 2)], lambda _: None, first_fault=True
        )
    assert [fault.sqlstates for fault in report.faults] == [{"40001"}]
