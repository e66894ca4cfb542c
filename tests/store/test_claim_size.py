"""A claim can always be read: inbox, children and activities come along up to 100 kB, and else in pages.

Nor do the states of a pick grow without bound: beyond a megabyte the next pick goes on.
"""

from __future__ import annotations

import json

import pytest
from tests.support.machine import KNOWN, send
from tests.support.rows import executing, instance, parked
from tests.support.store import Store

from gen_durable.store.inbox import InboxStatementBuilder
from gen_durable.store.journal import JournalStatementBuilder
from gen_durable.store.types import OutgoingSignal

LARGE = 950_000
CHILDREN = """
insert into @schema.instances (id, fsm, step, parent_id, parent_round, status, finished_at, claims, seq, state, result)
overriding system value
select 10 + n, 'm', 's', 1, 1, 'done', now(), 1, 1, '{{}}', to_jsonb(repeat('x', {size}))
from generate_series(1, {count}) as n;
"""
SIGNALS = """
insert into @schema.signals (target_id, name, payload, size)
select 1, 'go', to_jsonb(repeat('x', {size})), {size} + 2 from generate_series(1, {count}) as n;
update @schema.instances set has_signals = true where id = 1;
"""
ACTIVITIES = """
insert into @schema.activities (instance_id, visit, n, step, name, parameters, result, started_at, duration, attempt)
select 1, 0, n, 's', 'a' || n, '{{}}', to_jsonb(repeat('x', {size})), now(), 0, 0 from generate_series(1, {count}) as n;
update @schema.instances set has_journal = true where id = 1;
"""
JOINED = {"status": "runnable", "joined": True, "round": 1, "claims": 1, "seq": 1}


def signals_of(count: int, size: int) -> list[OutgoingSignal]:
    return [OutgoingSignal(1, None, "go", json.dumps("x" * size), None) for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["children", "signals", "activities"])
def test_a_pick_survives_what_is_too_large_for_one_datum(store: Store, what: str) -> None:
    """300 payloads of 0.95 MB, more than a jsonb array can hold: the row is claimed, and so is its neighbour."""
    many = {"children": CHILDREN, "signals": SIGNALS, "activities": ACTIVITIES}[what]
    row = instance(1, **(JOINED if what == "children" else {}))
    store.given(row + instance(2) + many.format(size=LARGE, count=300))
    first, second = store.pick().claims
    assert (first.id, second.id) == (1, 2)
    assert first.is_large
    assert not second.is_large
    assert (first.has_unread_inbox, first.has_unread_children, first.has_unread_activities) == (
        what == "signals",
        what == "children",
        what == "activities",
    )


def pages(store: Store, what: str) -> list[tuple[int, int]]:
    """The number of entries and the bytes of each page."""
    found: list[tuple[int, int]] = []
    after = 0
    while True:
        if what == "signals":
            page = store.run(InboxStatementBuilder(store.schema).inbox_page(1, after))
            sizes, ids = [len(signal.payload) for signal in page], [signal.id for signal in page]
        else:
            text = store.run(JournalStatementBuilder(store.calls.schema).activities_page(1, 0, after))
            entries = json.loads(text or "[]")
            sizes, ids = [len(entry[3]) for entry in entries], [entry[0] for entry in entries]
        if not ids:
            return found
        assert all(id_ > after for id_ in ids)
        found.append((len(ids), sum(sizes)))
        after = ids[-1]


@pytest.mark.parametrize(("what", "size", "count"), [("signals", 950_000, 9), ("activities", 950_000, 9)])
def test_pages_have_bounded_bytes_and_all_entries(store: Store, what: str, size: int, count: int) -> None:
    many = {"signals": SIGNALS, "activities": ACTIVITIES}[what]
    store.given(instance(1) + many.format(size=size, count=count))
    assert pages(store, what) == [(4, 4 * (size + 2)), (4, 4 * (size + 2)), (1, size + 2)]


@pytest.mark.parametrize("what", ["signals", "activities"])
def test_a_page_has_at_least_one_entry(store: Store, what: str) -> None:
    """Also one that is larger than a page is read."""
    many = {"signals": SIGNALS, "activities": ACTIVITIES}[what]
    store.given(instance(1) + many.format(size=4_500_000, count=3))
    assert [count for count, _ in pages(store, what)] == [1, 1, 1]


@pytest.mark.parametrize("what", ["children", "signals", "activities"])
def test_what_is_small_comes_with_the_claim(store: Store, what: str) -> None:
    many = {"children": CHILDREN, "signals": SIGNALS, "activities": ACTIVITIES}[what]
    store.given(instance(1, **(JOINED if what == "children" else {})) + many.format(size=900, count=100))
    (claim,) = store.pick().claims
    assert not claim.is_large
    activities = json.loads(claim.journal)["activities"] if claim.journal else []
    assert len(claim.children or ()) + len(claim.inbox) + len(activities) == 100


def test_children_that_are_large_together_are_read_in_pages(store: Store) -> None:
    """Fewer than 10,000, and over 100 kB: they do not come with the claim, and the pages have each of them once."""
    store.given(instance(1, **JOINED) + CHILDREN.format(size=LARGE, count=150))
    (claim,) = store.pick().claims
    assert claim.children is None
    read: list[int] = []
    while page := store.run(store.calls.children_page(1, read[-1] if read else 0, 1000)):
        assert sum(len(child.raw_result or b"") for child in page) <= 4_000_000
        read += [child.id for child in page]
    assert read == list(range(11, 161))


@pytest.mark.parametrize(("size", "pages"), [(100, [10]), (500, [2, 2, 2, 2, 2]), (3000, [1] * 10)])
def test_a_page_has_bounded_bytes_and_at_least_one_child(store: Store, size: int, pages: list[int]) -> None:
    """Also a child that is larger than a page is read."""
    store.given(instance(1, **JOINED) + CHILDREN.format(size=size, count=10))
    found: list[int] = []
    after = 0
    while True:
        (row,) = store.sql("select @schema.children_page(1, 1, $1, 100, 1100)::text as page", after)
        if row["page"] is None:
            break
        page = json.loads(row["page"])
        found.append(len(page))
        after = page[-1]["id"]
    assert found == pages


def test_an_inbox_takes_a_bounded_number_of_bytes(store: Store) -> None:
    """The sender of a signal beyond 64 MB is refused; what was consumed counts no more."""
    store.given(parked(1, name="other") + SIGNALS.format(size=LARGE, count=67))
    small, large = signals_of(1, 10), signals_of(1, LARGE)
    assert store.signal(*large)[0][1] == "full"
    assert store.signal(*small)[0][1] == "delivered"
    store.sql("delete from @schema.signals where id = (select min(id) from @schema.signals)")
    assert store.signal(*large)[0][1] == "delivered"
    (claim,) = store.run(store.calls.pick("w", {"default": 1}, ["m/1/s"], 60)).claims or [None]
    assert claim is None
    store.signal(send(1, "other"))
    (claim,) = store.pick().claims
    assert claim.has_unread_inbox
    assert sum(count for count, _ in pages(store, "signals")) == 69  # every signal that was delivered


def test_the_signals_of_one_call_are_counted_together(store: Store) -> None:
    """Of a hundred signals in one call those that fit are delivered, in their order."""
    store.given(parked(1, name="other"))
    verdicts = [verdict for _, verdict, _ in store.signal(*signals_of(70, LARGE))]
    assert verdicts == ["delivered"] * 67 + ["full"] * 3


def test_the_journal_of_a_claim_holds_results_as_they_were(store: Store) -> None:
    store.given(executing(1) + ACTIVITIES.format(size=3, count=2))
    store.given("update @schema.instances set status = 'runnable', lease_expires_at = null, locked_by = null;")
    (claim,) = store.pick().claims
    assert json.loads(claim.journal or "")["activities"] == [[1, "a1", True, '"xxx"'], [2, "a2", True, '"xxx"']]


def states(count: int, size: int, value: str, **columns: object) -> str:
    """Rows from id 1 on with a state of `size` bytes."""
    rows = "".join(instance(id_, **columns) for id_ in range(1, count + 1))
    return rows + f"update @schema.instances set state = to_jsonb(({value.format(size=size)})::text);\n"


COMPRESSED = "repeat('x', {size})"
INCOMPRESSIBLE = "(select string_agg(md5(n::text), '') from generate_series(1, {size} / 32) as n)"


@pytest.mark.parametrize("value", [COMPRESSED, INCOMPRESSIBLE])
def test_a_pick_claims_a_bounded_number_of_bytes(store: Store, value: str) -> None:
    """Twelve states of 400 kB: four picks of a megabyte, each of which says that there is more at once."""
    store.given(states(12, 400_000, value))
    found: list[list[int]] = []
    while claims := (picked := store.pick(100)).claims:
        found.append([claim.id for claim in claims])
        if len(found) < 4:
            (unmet,) = picked.unmet
            assert unmet.next_due is not None
            assert unmet.next_due <= 0
    assert found == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]


@pytest.mark.parametrize("columns", [{"partition_key": "p"}, {"slot_key": "l"}])
def test_rows_with_gates_are_bounded_too(store: Store, columns: dict[str, object]) -> None:
    store.given("insert into @schema.limits (name, kind, slots) values ('l', 'concurrency', 100);\n")
    store.given(states(9, 400_000, COMPRESSED, **columns))
    if "partition_key" in columns:
        store.given("update @schema.instances set partition_key = 'p' || id;\n")
    assert [claim.id for claim in store.pick(100).claims] == [1, 2, 3]


def test_many_states_that_compress_well_are_claimed_at_once(store: Store) -> None:
    """What is estimated at more than a megabyte is measured before a pick is cut short."""
    store.given(states(50, 10_000, COMPRESSED))
    assert len(store.pick(100).claims) == 50


def test_each_queue_has_a_bound_of_its_own(store: Store) -> None:
    store.given(states(12, 400_000, COMPRESSED) + instance(50, queue="other"))
    assert [claim.id for claim in store.pick(default=100, other=10).claims] == [1, 2, 3, 50]


def test_groups_that_were_cut_off_come_next(store: Store) -> None:
    """A fair queue continues with the group after the last one that was served, here of nine with two rows each."""
    store.given(states(18, 400_000, COMPRESSED) + "update @schema.instances set group_key = 't/' || id % 9;\n")
    last: str | None = None
    found: list[list[int]] = []
    for _ in range(4):
        fair = json.dumps({"default": ["t", last]})
        picked = store.run(store.calls.pick("w", {"default": 9}, KNOWN, 60, fair=fair))
        found.append(sorted(claim.id % 9 for claim in picked.claims))
        last = picked.last_groups["default"]
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 2]]
