"""Who must not wait for a row that somebody else holds: they pass over it, and deal with the rest.

Each is run while another session holds a row that it would like to have, and with so little patience that waiting for
it is an error. Those that do wait, wait for a while only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from tests.support.machine import KNOWN, M, child, fan_out
from tests.support.rows import ended, executing, instance, parent, parked, seconds, signal
from tests.support.store import Store

from gen_durable.limits import Concurrency
from gen_durable.starts import Start
from gen_durable.store.inbox import InboxStatementBuilder
from gen_durable.store.journal import JournalStatementBuilder, ProgressReport
from gen_durable.store.retention import RetentionStatementBuilder
from gen_durable.store.types import Commit

ROW = "select from @schema.instances where id = {} for update"
GATE = "select from @schema.gate_locks where id = @schema.gate_row_id('{}') for no key update"
SLOTS = "insert into @schema.limits (name, kind, slots) values ('l', 'concurrency', 1);\n"
RATE = "insert into @schema.limits (name, kind, period, burst) values ('r', 'rate', 3600, 1);\n"
EXPIRED = {"lease_expires_at": seconds(-1)}
CASCADE = (
    "insert into @schema.cascades (id, parent_id, first_round, last_round, origin, reason)"
    " overriding system value values "
)
TICKET = "insert into @schema.step_slots (ticket, slot_key, instance_id, claim) values "


@pytest.fixture
def other(store: Store, dsn: str) -> Iterator[Store]:
    """Another session, in a transaction."""
    made = Store(dsn, store.schema.name)
    made.given("begin")
    yield made
    made.given("rollback")
    made.close()


def many(first: int, last: int, **columns: object) -> str:
    return "".join(instance(i, eligible_at=seconds(i - 90), **columns) for i in range(first, last + 1))


def pick(store: Store, demand: int, **fair: str) -> list[int]:
    turns = json.dumps({"default": [fair["kind"], None]}) if fair else None
    picked = store.run(store.calls.pick("w", {"default": demand}, KNOWN, 60, fair=turns))
    return [claim.id for claim in picked.claims]


def column(store: Store, name: str, table: str) -> list[Any]:
    return [row[name] for row in store.sql(f"select * from @schema.{table}")]


def blocked(store: Store) -> set[int]:
    return {row["id"] for row in store.rows() if row["blocked_on"] is not None}


@dataclass(frozen=True)
class Case:
    """Rows, what the other holds, what is done, and what must come of it."""

    given: str
    held: str
    call: Callable[[Store], Any]
    answer: Any


def end_of(id: int) -> Callable[[Store], Any]:  # noqa: A002
    """Row 1 ends, and its gate is handed over; which of the others still wait."""

    def call(store: Store) -> set[int]:
        store.flush(Commit(id, 1, 0, "done", value="1"))
        return blocked(store)

    return call


CASES = {
    "pick": Case(many(1, 3), ROW.format(2), lambda s: pick(s, 3), [1, 3]),
    "pick of crashed rows": Case(
        many(1, 3, crashes=2, blocked_on="crashed/default"), ROW.format(2), lambda s: pick(s, 3), [1, 3]
    ),
    "pick of a group": Case(
        many(1, 3, group_key="t/a"), ROW.format(2), lambda s: sorted(pick(s, 3, kind="t")), [1, 3]
    ),
    "pick of those without a group": Case(many(1, 3), ROW.format(2), lambda s: sorted(pick(s, 3, kind="t")), [1, 3]),
    "crowd of a key": Case(
        executing(50, partition_key="k") + many(1, 14, partition_key="k"),
        ROW.format(12),
        lambda s: (pick(s, 10), blocked(s)),
        ([], {*range(1, 15)} - {12}),
    ),
    "crowd of a slot": Case(
        SLOTS + executing(50, slot_key="l") + many(1, 14, slot_key="l"),
        ROW.format(12),
        lambda s: (pick(s, 10), blocked(s)),
        ([], {*range(1, 15)} - {12}),
    ),
    "crowd of a rate": Case(
        RATE
        + "insert into @schema.rate_buckets values ('r', now() + interval '2 hours');\n"
        + many(1, 14, rate_key="r"),
        ROW.format(12),
        # The first of them is told when its token comes.
        lambda s: (pick(s, 10), blocked(s)),
        ([], {*range(2, 15)} - {12}),
    ),
    "head that comes instead": Case(
        instance(1, partition_key="k", blocked_on="partition/k", eligible_at=seconds(-99))
        + many(2, 3, partition_key="k"),
        ROW.format(1),
        lambda s: (pick(s, 3), blocked(s)),
        ([], {1, 2, 3}),
    ),
    "hand-over of a key": Case(
        executing(1, partition_key="k") + many(2, 3, partition_key="k", blocked_on="partition/k"),
        ROW.format(2),
        end_of(1),
        {2, 3},
    ),
    "hand-over of a slot": Case(
        SLOTS + executing(1, slot_key="l") + many(2, 3, slot_key="l", blocked_on="slot/l"),
        ROW.format(2),
        end_of(1),
        {2},
    ),
    "hand-over of a token": Case(
        RATE + many(2, 3, rate_key="r", blocked_on="rate/r"),
        ROW.format(2),
        lambda s: (s.run(s.calls.unblock_missed_rows(None, 10)), blocked(s))[1],
        {2},
    ),
    "row of a changed limit": Case(
        RATE + many(2, 3, rate_key="r", token_at=seconds(600)),
        ROW.format(2),
        lambda s: (s.sql("select @schema.reapply_limit('r')"), s.row(2)["token_at"] is not None)[1],
        True,
    ),
    "gate of a sweep": Case(
        SLOTS + many(2, 3, slot_key="l", blocked_on="slot/l"),
        GATE.format("slot/l"),
        lambda s: (s.run(s.calls.unblock_missed_rows(None, 10)), blocked(s))[1],
        {2, 3},
    ),
    "beat": Case(
        executing(1, **EXPIRED) + executing(2, **EXPIRED),
        ROW.format(1),
        lambda s: (s.run(s.calls.heartbeat([(1, 1), (2, 1)], 60)), [s.row(i)["lease_in"] > 0 for i in (1, 2)]),
        ([], [False, True]),
    ),
    "reap": Case(
        executing(1, **EXPIRED) + executing(2, **EXPIRED),
        ROW.format(1),
        lambda s: [claim.id for claim in s.run(s.calls.reap(10, None)).claims],
        [2],
    ),
    "reap of a child whose parent is held": Case(
        parent(1, pending=1) + executing(2, parent_id=1, parent_round=1, **EXPIRED),
        ROW.format(1),
        lambda s: [claim.id for claim in s.run(s.calls.reap(10, 1)).claims],
        [],
    ),
    "gc": Case(
        ended(1) + ended(2),
        ROW.format(1),
        lambda s: (s.run(s.calls.gc(1, 1, 1, 10)).deleted, [row["id"] for row in s.rows()]),
        (1, [1]),
    ),
    "gc_rows_with_own_retention": Case(
        ended(1, keep_seconds=1) + ended(2, keep_seconds=1),
        ROW.format(1),
        lambda s: (
            s.run(RetentionStatementBuilder(s.schema).gc_rows_with_own_retention(10)).deleted,
            [row["id"] for row in s.rows()],
        ),
        (1, [1]),
    ),
    "cascade of a list": Case(
        ended(1) + ended(2) + CASCADE + "(1, 1, 0, 1, 1, 'a'), (2, 2, 0, 1, 2, 'b');\n",
        "select from @schema.cascades where id = 1 for update",
        lambda s: (s.run(s.calls.cancel_listed_descendants(10, None)).more, len(s.sql("select from @schema.cascades"))),
        (True, 1),
    ),
    "cascade of a child": Case(
        ended(1)
        + parked(2, parent_id=1, parent_round=1)
        + parked(3, parent_id=1, parent_round=1)
        + "update @schema.instances set round = 1 where id = 1;"
        + CASCADE
        + "(1, 1, 0, 1, 1, 'a');\n",
        ROW.format(2),
        lambda s: (s.run(s.calls.cancel_listed_descendants(10, None)).ended, s.row(3)["status"]),
        (1, "cancelled"),
    ),
    "tickets of dead claims": Case(
        executing(1, claims=2) + TICKET + "(7, 'l', 1, 1), (8, 'l', 1, 1);\n",
        "select from @schema.step_slots where ticket = 7 for update",
        lambda s: (s.run(s.calls.delete_tickets_of_dead_claims()), column(s, "ticket", "step_slots"))[1],
        [7],
    ),
    "buckets": Case(
        "insert into @schema.rate_buckets select k, now() - interval '2 hours' from unnest('{a,b}'::text[]) k",
        "select from @schema.rate_buckets where key = 'a' for update",
        lambda s: (s.run(s.calls.delete_full_rate_buckets()), column(s, "key", "rate_buckets")),
        (1, ["a"]),
    ),
    "report": Case(
        executing(1, has_journal=True) + executing(2, has_journal=True),
        ROW.format(1),
        lambda s: s.run(
            JournalStatementBuilder(s.schema).record_progress(
                [ProgressReport(i, 1, "s", "", 0.5, None, None) for i in (1, 2)]
            )
        ),
        {1},
    ),
    "rejected signals": Case(
        "".join(parked(i) + signal(6 + i, i, consumed=True, rejection="no", rejected_by=["a"]) for i in (1, 2)),
        ROW.format(1),
        lambda s: s.run(InboxStatementBuilder(s.schema).retry_signals_others_rejected([("m", 1, "b")], (0, 0), 9)).ids,
        [8],
    ),
    "unlocked": Case(
        instance(1) + instance(2), ROW.format(1), lambda s: s.run(s.calls.unlocked_ids([1, 2])), {2}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.dirty  # what is passed over is left to the next turn, so a row may be stranded until then
def test_what_is_held_is_passed_over(store: Store, other: Store, name: str) -> None:
    case = CASES[name]
    store.given(case.given)
    other.given(case.held)
    store.given("set lock_timeout = '200ms'")
    assert case.call(store) == case.answer


PATIENT: dict[str, tuple[str, Callable[[Store], Any]]] = {
    "flush": (ROW.format(1), lambda s: s.calls.flush([Commit(1, 1, 0, "done", value="1")])),
    "lock_parent_and_allocate_ids": (
        ROW.format(2),
        lambda s: s.calls.lock_parent_and_allocate_ids(Commit(2, 1, 0, "children"), 2),
    ),
    "insert_instances_of_outcomes": (
        instance(90, unique_key=b"taken", unique_scope="{runnable}"),
        lambda s: s.calls.insert_instances_of_outcomes(
            Commit(3, 1, 0, "children"), json.dumps([child("taken", id=91)])
        ),
    ),
    "retry": (ROW.format(4), lambda s: s.reads.retry(4, None)),
    "delete_instance": (ROW.format(5), lambda s: s.reads.delete_instance(5, None)),
    "delete_signals": (ROW.format(6), lambda s: InboxStatementBuilder(s.schema).delete_signals(6, None, None)),
    "restore_signals": (ROW.format(8), lambda s: InboxStatementBuilder(s.schema).restore_signals([7])),
}


@pytest.mark.slow
def test_who_waits_gives_up_in_the_end(store: Store, other: Store, dsn: str) -> None:
    """Not for ever: the caller has others to serve, and tries again. All wait at once, each for a row of its own."""
    store.given("".join(executing(i) for i in (1, 2, 3)))
    store.given("".join(instance(i, status="failed", finished_at=seconds(-1)) for i in (4, 5, 6, 8)))
    store.given(signal(7, 8) + signal(9, 6))
    for held, _ in PATIENT.values():
        other.given(held)

    async def wait(make: Callable[[Store], Any]) -> str:
        call = make(store)
        connection = await asyncpg.connect(dsn)
        try:
            await asyncio.wait_for(connection.fetch(call.text, *call.args), 12)
        except Exception as error:
            return type(error).__name__
        finally:
            connection.terminate()
        return "did not wait"

    async def wait_with_all() -> dict[str, str]:
        found = await asyncio.gather(*(wait(make) for _, make in PATIENT.values()))
        return dict(zip(PATIENT, found, strict=True))

    assert asyncio.run(wait_with_all()) == dict.fromkeys(PATIENT, "LockNotAvailableError")


@pytest.mark.parametrize(
    ("given", "held"),
    [
        pytest.param(SLOTS + instance(1, slot_key="l"), "slot/l", id="slot"),
        pytest.param(RATE + instance(1, rate_key="r"), "rate/r", id="rate"),
        pytest.param(SLOTS + instance(1, slot_key="l"), None, id="policy"),
        pytest.param(instance(1, partition_key="k"), "partition/k", id="partition"),
        pytest.param(
            SLOTS + executing(50, partition_key="k") + instance(1, partition_key="k", slot_key="l"),
            "slot/l",
            id="slot of a busy key",
        ),
    ],
)
def test_a_pick_that_finds_every_gate_locked_is_told_to_look_again(
    store: Store, other: Store, given: str, held: str | None
) -> None:
    """The row stays due, and the session that has the lock does not know of it: no other wake-up comes."""
    store.given(given)
    if held is None:
        other.run(other.calls.set_limit("l", Concurrency(2), declared=False))
    else:
        other.given(GATE.format(held))
    store.given("set lock_timeout = '200ms'")
    picked = store.pick()
    assert (picked.claims, picked.unmet[0].contended) == ([], 1)
    assert picked.unmet[0].next_due is not None
    assert picked.unmet[0].next_due < 1
    assert blocked(store) == set()


def test_a_reserved_parent_stays_locked(store: Store, other: Store) -> None:
    """Until its children and its outcome are committed nobody takes its claim."""
    store.given(executing(1))
    assert other.run(other.calls.lock_parent_and_allocate_ids(Commit(1, 1, 0, "children"), 2)) == [101, 102]
    assert store.run(store.calls.unlocked_ids([1])) == set()
    for stale in (Commit(1, 2, 0, "children"), Commit(1, 1, 1, "children")):
        assert other.run(other.calls.lock_parent_and_allocate_ids(stale, 2)) is None


def test_a_row_that_is_being_inserted_under_a_key_is_waited_for(store: Store) -> None:
    """And its key is then taken: no second child is made."""
    store.insert(Start(M.s, {}, unique_key="taken"))
    store.given(executing(1))
    store.flush(fan_out(1, child("taken"), child("free")))
    assert store.row(1)["children_pending"] == 1
